// Linear layers, products of two values, softmax along an axis, and attention.
#include <algorithm>
#include <cmath>

#include "../plain/walk.h"
#include "rows.h"

namespace xnorpp {
namespace {

Value linear(const Site &site) {
    const int64_t i = site.vector();
    const Tensor &weight = *site.tensor("weight");
    if (weight.shape.size() != 2) site.fail("`weight` has shape " + text_of(weight.shape) + "; (o, " + std::to_string(i) + ") is needed");
    site.real("weight", {weight.shape[0], i});
    const Value out{Kind::F32, {weight.shape[0]}};
    if (site.tensor("bias")) site.real("bias", channels_of(out));
    return out;
}

template <Kind kind>
Value bit_linear(const Site &site) {
    const int64_t i = site.vector();
    const Tensor &weight = *site.tensor("weight");
    if (!weight.is_bits()) site.fail("`weight` is " + std::string(name_of(weight.encoding)) + "; one bit in U8 is needed");
    if (i > kMostTaps)
        site.fail("the input has " + std::to_string(i) + " channels; a dot product has at most " + std::to_string(kMostTaps));
    if (weight.shape.size() != 2)
        site.fail("`weight` has shape " + text_of(weight.shape) + "; (o, " + std::to_string((i + 7) / 8) + ") is needed");
    site.bits("weight", {weight.shape[0], i});
    return {kind, {weight.shape[0]}};
}

// Of a vector where `axis` is absent.
Value softmax(const Site &site) {
    if (site.op.attrs.find("axis")) site.axis("axis");
    else site.vector();
    return *site.inputs[0];
}

Value log_softmax(const Site &site) {
    site.axis("axis");
    return *site.inputs[0];
}

Value matmul(const Site &site) {
    const Shape &a = site.inputs[0]->shape, &b = site.inputs[1]->shape;
    const size_t rank = a.size();
    bool right = rank >= 2 && b.size() == rank && a[rank - 1] == b[rank - 2];
    for (size_t i = 0; right && i + 2 < rank; i++) right = a[i] == b[i];
    if (!right)
        site.fail("the inputs have shapes " + text_of(a) + " and " + text_of(b) + "; (.., n, k) and (.., k, m) with equal axes before are needed");
    if (a[rank - 1] > kMostTaps) site.fail("a sum has " + std::to_string(a[rank - 1]) + " products; at most " + std::to_string(kMostTaps) + " are allowed");
    Shape out = a;
    out[rank - 1] = b[rank - 1];
    return {Kind::F32, out};
}

int64_t matmul_work(const Site &site, const Value &out) { return elements_of(out.shape) * site.inputs[0]->shape.back(); }
int64_t soft_work(const Site &, const Value &out) { return 8 * elements_of(out.shape); }

Value attention(const Site &site) {
    const Shape &q = site.inputs[0]->shape, &k = site.inputs[1]->shape, &v = site.inputs[2]->shape;
    const int64_t heads = site.integer("heads", 1, q[0]);
    site.number("scale");
    Shape out = q;
    out[0] = v[0];
    const Shape key(k.begin() + 1, k.end()), value(v.begin() + 1, v.end());
    if (q[0] != k[0] || key != value || q[0] % heads || v[0] % heads)
        site.fail("queries, keys and values have shapes " + text_of(q) + ", " + text_of(k) + " and " + text_of(v) +
                  "; queries and keys need as many channels, keys and values the same pixels, and `heads` (=" + std::to_string(heads) + ") must divide all channels");
    return {Kind::F32, out};
}

int64_t attention_work(const Site &site, const Value &out) {
    const Shape &q = site.inputs[0]->shape, &k = site.inputs[1]->shape;
    return elements_of(q) / q[0] * (elements_of(k) / k[0]) * (q[0] + out.channels());
}

// On the CPU.

// (n, k) x (k, m): pixel j of the result is the sum over k of number k of the second's pixel j times pixel k of the first.
PlainStep flat_product(const PlainSite &site) {
    const Kernels &kernels = site.kernels;
    return {[&kernels](const PlainCall &call, int first, int count, float *to) {
        const View &a = call.in[0], &b = call.in[1], &out = call.out;
        kernels.product(b.data + (size_t)first * b.stride, b.stride, a.data, a.stride, count, b.c, (int)round_up((size_t)out.c, 16), to, out.stride);
    }};
}

// (.., n, k) x (.., k, m): the axes before the last two lie side by side, the first one as channels. A piece is some rows of one
// product, so that what is read serves several of them.
PlainStep batched_product(const PlainSite &site) {
    constexpr int64_t kRows = 4, kMost = 1 << 17;  // numbers of a piece
    const Kernels &kernels = site.kernels;
    const Shape &shape = site.output().shape;
    const int64_t columns = shape.back(), rows = shape[shape.size() - 2], wide = columns * (int64_t)round_up((size_t)shape[0], 16);
    PlainStep step;
    if (wide > kMost) step.grain = 0;
    else step.grain = (int)(columns * std::max<int64_t>(1, std::min({rows, kRows * std::max<int64_t>(1, 1024 / wide), kMost / wide})));
    step.run = [&kernels, rows, columns](const PlainCall &call, int first, int count, float *to) {
        const View &a = call.in[0], &b = call.in[1], &out = call.out;
        const size_t rank = out.rank;
        SideProduct s;
        s.channels = (int)round_up((size_t)out.c, 16), s.inner = a.size[rank - 1];
        s.a_row = a.step[rank - 2], s.a_inner = a.step[rank - 1], s.b_inner = b.step[rank - 2], s.b_column = b.step[rank - 1];
        s.out_column = out.stride, s.out_row = columns * out.stride;
        for (int at = 0; at < count;) {
            const int64_t pixel = first + at, column = pixel % columns, row = pixel / columns % rows;
            // Whole rows of a matrix, or what there is of one row.
            const int64_t whole = std::min(rows - row, (count - at) / columns);
            s.rows = column || !whole ? 1 : (int)whole;
            s.columns = column || !whole ? (int)std::min<int64_t>(columns - column, count - at) : (int)columns;
            int64_t left = row * s.a_row, right = column * s.b_column, lead = pixel / columns / rows;
            for (size_t axis = rank - 2; axis-- > 1; lead /= a.size[axis]) {
                const int64_t place = lead % a.size[axis];
                left += place * a.step[axis], right += place * b.step[axis];
            }
            kernels.side_product(s, a.data + left, b.data + right, to + (size_t)at * out.stride);
            at += s.rows * s.columns;
        }
    };
    return step;
}

PlainStep matmul(const PlainSite &site) {
    return site.output().shape.size() == 2 ? flat_product(site) : batched_product(site);
}

// exp(x - most) and its sum, from numbers `step` apart; rounded as every engine does.
struct Soft {
    float most;
    double sum;
};

// The greatest of some numbers; any where one of them is NaN, which makes all that follows NaN.
float most_of(const float *x, int64_t n) {
    typedef float Four __attribute__((vector_size(16)));
    const auto four = [x](int64_t i) {
        Four v;
        __builtin_memcpy(&v, x + i, sizeof v);
        return v;
    };
    float most = x[0];
    int64_t i = 0;
    if (n >= 8) {
        Four a = four(0), b = four(4);
        for (i = 8; i + 8 <= n; i += 8) {
            const Four c = four(i), d = four(i + 4);
            a = c > a ? c : a, b = d > b ? d : b;
        }
        a = b > a ? b : a;
        for (int j = 0; j < 4; j++) most = a[j] > most ? a[j] : most;
    }
    for (; i < n; i++) most = x[i] > most ? x[i] : most;
    return most;
}

template <bool kLogarithm>
PlainStep soft(const PlainSite &site) {
    const Kernels &kernels = site.kernels;
    const Shape &shape = site.input().shape;
    // Counted from the last one: those before may be fewer here.
    const size_t lost = site.program.values[(size_t)site.op.output].shape.size() - shape.size();
    const size_t axis = site.op.attrs.find("axis") ? (size_t)site.op.integer("axis") - lost : 0;
    int64_t inner = 1;
    for (size_t i = axis + 1; i < shape.size(); i++) inner *= shape[i];
    const int64_t size = shape[axis];
    PlainStep step;
    step.grain = axis ? (int)(size * inner) : 0;  // a piece has whole rows of the axis
    step.scratch = round_up((size_t)shape[0], 16) * (axis ? 12 : 0) + 64;
    step.run = [&kernels, axis, inner, size](const PlainCall &call, int first, int count, float *to) {
        const View &in = call.in[0], &out = call.out;
        const int stride = out.stride, c = out.c;
        for (int i = 0; i < count; i++) {
            const float *from = in.data + (size_t)(first + i) * in.stride;
            for (int k = 0; k < stride; k++) to[(size_t)i * stride + k] = k < c ? from[k] : 0;
        }
        const auto finish = [](float x, float e, float total, float logarithm) { return kLogarithm ? x - logarithm : e / total; };
        if (axis == 0) {
            for (int i = 0; i < count; i++) {
                float *row = to + (size_t)i * stride;
                const float *from = in.data + (size_t)(first + i) * in.stride;
                const float most = most_of(row, c);
                for (int k = 0; k < c; k++) row[k] -= most;
                kernels.curve(kExpCurve, 0, row, stride);
                double sum = 0;
                for (int k = 0; k < c; k++) sum += row[k];
                const float total = (float)sum;
                alignas(64) float line[16] = {total};
                kernels.curve(kLogCurve, 0, line, 16);
                for (int k = 0; k < c; k++) row[k] = finish(from[k] - most, row[k], total, line[0]);
            }
            return;
        }
        if (!kLogarithm) {
            for (int64_t at = 0; at < inner; at++) kernels.softmax(to + at * stride, inner * stride, size, stride);
            return;
        }
        float *most = (float *)call.scratch, *total = most + stride, *logarithm = total + stride;
        for (int64_t at = 0; at < inner; at++) {
            float *rows = to + at * stride;
            const int64_t far = inner * stride;
            const float *from = in.data + (first + at) * (int64_t)in.stride;
            for (int k = 0; k < stride; k++) most[k] = rows[k];
            for (int64_t i = 1; i < size; i++)
                for (int k = 0; k < stride; k++) {
                    const float u = rows[i * far + k];
                    most[k] = u <= most[k] || most[k] != most[k] ? most[k] : u;
                }
            for (int64_t i = 0; i < size; i++) {
                for (int k = 0; k < stride; k++) rows[i * far + k] -= most[k];
                kernels.curve(kExpCurve, 0, rows + i * far, stride);
            }
            for (int k = 0; k < stride; k++) {
                double sum = 0;
                for (int64_t i = 0; i < size; i++) sum += rows[i * far + k];
                logarithm[k] = total[k] = (float)sum;
            }
            kernels.curve(kLogCurve, 0, logarithm, stride);
            for (int64_t i = 0; i < size; i++)
                for (int k = 0; k < c; k++)
                    rows[i * far + k] = finish(from[i * inner * in.stride + k] - most[k], rows[i * far + k], total[k], logarithm[k]);
        }
    };
    return step;
}

// Queries, keys and values of all heads side by side as channels, tokens as pixels. The keys of a head are turned round once,
// so that scores of one query are one product, and so is what they weigh.
PlainStep attention(const PlainSite &site) {
    const Kernels &kernels = site.kernels;
    const int heads = site.op.integer("heads");
    const float scale = site.number("scale");
    const Extent q = extent_of(site.input(0).shape), k = extent_of(site.input(1).shape), v = extent_of(site.input(2).shape);
    const size_t keys = (size_t)k.h * (size_t)k.w, wide = round_up(keys, 16);
    const size_t deep = (size_t)(q.c / heads), across = round_up((size_t)(v.c / heads), 16);
    constexpr int kQueries = 16;
    const size_t turned = (size_t)heads * deep * wide, weighed = (size_t)heads * keys * across;
    PlainStep step;
    step.grain = kQueries;
    step.scratch = (turned + weighed + kQueries * (wide + across + deep)) * 4 + 64;
    site.budget.take(step.scratch);
    step.run = [=, &kernels](const PlainCall &call, int first, int count, float *to) {
        const View &queries = call.in[0], &key = call.in[1], &value = call.in[2], &out = call.out;
        float *turn = (float *)call.scratch, *weigh = turn + turned, *scores = weigh + weighed, *sums = scores + kQueries * wide;
        float *asked = sums + kQueries * across;
        const size_t part = (size_t)(value.c / heads);
        if (call.fresh) {
            for (size_t h = 0; h < (size_t)heads; h++)
                for (size_t d = 0; d < deep; d++)
                    for (size_t t = 0; t < wide; t++)
                        turn[(h * deep + d) * wide + t] = t < keys ? key.data[t * (size_t)key.stride + h * deep + d] : 0;
            for (size_t h = 0; h < (size_t)heads; h++)
                for (size_t t = 0; t < keys; t++)
                    for (size_t d = 0; d < across; d++)
                        weigh[(h * keys + t) * across + d] = d < part ? value.data[t * (size_t)value.stride + h * part + d] : 0;
        }
        for (size_t h = 0; h < (size_t)heads; h++) {
            for (int i = 0; i < count; i++)
                for (size_t d = 0; d < deep; d++)
                    asked[(size_t)i * deep + d] = queries.data[(size_t)(first + i) * queries.stride + h * deep + d] * scale;
            kernels.product(asked, (int)deep, turn + h * deep * wide, (int)wide, count, (int)deep, (int)wide, scores, (int)wide);
            for (int i = 0; i < count; i++) {
                float *row = scores + (size_t)i * wide;
                const float most = most_of(row, (int64_t)keys);
                for (size_t t = 0; t < wide; t++) row[t] -= most;
                kernels.curve(kExpCurve, 0, row, (int)wide);
                double part_sum[8] = {};
                size_t t = 0;
                for (; t + 8 <= keys; t += 8)
                    for (size_t j = 0; j < 8; j++) part_sum[j] += row[t + j];
                double sum = 0;
                for (; t < keys; t++) sum += row[t];
                for (size_t j = 0; j < 8; j++) sum += part_sum[j];
                const float total = (float)sum;
                for (size_t n = 0; n < keys; n++) row[n] /= total;
            }
            kernels.product(scores, (int)wide, weigh + h * keys * across, (int)across, count, (int)keys, (int)across, sums, (int)across);
            for (int i = 0; i < count; i++)
                for (size_t d = 0; d < part; d++) to[(size_t)i * out.stride + h * part + d] = sums[(size_t)i * across + d];
        }
    };
    return step;
}

}  // namespace

void add_products(Rows &rows) {
    rows.insert(rows.end(), {
        {"linear", {kF}, linear, filter_work, Fusion::Producer, {}, {"weight"}, {"bias"}},
        {"binary_linear", {kB}, bit_linear<Kind::Int>, filter_work, Fusion::Producer, {}, {"weight"}, {}},
        {"bitweight_linear", {kF}, bit_linear<Kind::F32>, filter_work, Fusion::Producer, {}, {"weight"}, {}},
        {"softmax", {kF}, softmax, outputs_work, Fusion::Producer, {}, {}, {}, 1, soft<false>, {"axis"}},
        {"log_softmax", {kF}, log_softmax, soft_work, Fusion::Producer, {"axis"}, {}, {}, 2, soft<true>},
        {"matmul", {kF, kF}, matmul, matmul_work, Fusion::Producer, {}, {}, {}, 2, matmul},
        {"attention", {kF, kF, kF}, attention, attention_work, Fusion::Producer, {"heads", "scale"}, {}, {}, 2, attention},
    });
}

}  // namespace xnorpp
