// Linear layers and what else multiplies and adds over a whole axis.
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

}  // namespace

void add_products(Rows &rows) {
    rows.insert(rows.end(), {
        {"linear", {kF}, linear, filter_work, Fusion::Producer, {}, {"weight"}, {"bias"}},
        {"binary_linear", {kB}, bit_linear<Kind::Int>, filter_work, Fusion::Producer, {}, {"weight"}, {}},
        {"bitweight_linear", {kF}, bit_linear<Kind::F32>, filter_work, Fusion::Producer, {}, {"weight"}, {}},
        {"softmax", {kF}, softmax, outputs_work, Fusion::Producer, {}, {}, {}, 1, {"axis"}},
        {"log_softmax", {kF}, log_softmax, soft_work, Fusion::Producer, {"axis"}, {}, {}, 2},
        {"matmul", {kF, kF}, matmul, matmul_work, Fusion::Producer, {}, {}, {}, 2},
        {"attention", {kF, kF, kF}, attention, attention_work, Fusion::Producer, {"heads", "scale"}, {}, {}, 2},
    });
}

}  // namespace xnorpp
