#include "stem.h"

#include <algorithm>
#include <cmath>

#include "operations.h"

namespace xnorpp {
namespace {

constexpr double kAlong = 0.95, kAcross = 0.9;     // correlation of neighbouring pixels, and of neighbouring channels
constexpr double kLargest = 127 * 256 + 127;       // of a number that is two signed bytes
constexpr int64_t kMostStemTaps = 4096;            // inputs of a filter: engines take them one after the other
constexpr double kLeastStd = 1e-6, kLargestWeight = 1e30;  // beyond these a filter's scale may be infinite in float32
constexpr int64_t kLargeKernel = 7, kLargeStride = 2;  // of a stem that is worth rounding

// The sum of absolute values, in the order of numpy's pairwise summation: files were written with it.
double absolute_sum(const double *v, size_t n) {
    if (n < 8) {
        double sum = 0;
        for (size_t i = 0; i < n; i++) sum += std::abs(v[i]);
        return sum;
    }
    if (n <= 128) {
        double part[8];
        for (size_t j = 0; j < 8; j++) part[j] = std::abs(v[j]);
        size_t i = 8;
        for (; i + 8 <= n; i += 8)
            for (size_t j = 0; j < 8; j++) part[j] += std::abs(v[i + j]);
        double sum = ((part[0] + part[1]) + (part[2] + part[3])) + ((part[4] + part[5]) + (part[6] + part[7]));
        for (; i < n; i++) sum += std::abs(v[i]);
        return sum;
    }
    size_t half = n / 2;
    half -= half % 8;
    return absolute_sum(v, half) + absolute_sum(v + half, n - half);
}

double room_of(int64_t c, int64_t kh, int64_t kw, double off) {
    return (2147483648.0 - 1024.0) / 255.0 - (double)(kh * kw) * (4.0 * (double)c + off);
}

double offset_of(const std::vector<double> &mean) {  // the most a tap's part of the mean may be off by
    std::vector<double> single;
    for (const double m : mean) single.push_back((double)(float)m);
    return 4.0 * absolute_sum(single.data(), single.size()) + 3.0;
}

// Whole numbers near the filter `real` [c][kh][kw] / scale: see stem.h.
void round_filter(const std::vector<double> &real, double scale, int64_t c, int64_t kh, int64_t kw, int16_t *taps) {
    const int64_t rows = kw + 1, lanes = c + 1;
    std::vector<double> owed((size_t)((kh + 1) * rows * lanes));  // [i + 1][j + 1][channel + 1]; nothing at the edges
    for (int64_t i = 0; i < kh; i++)
        for (int64_t j = 0; j < kw; j++)
            for (int64_t k = 0; k < c; k++) {
                const size_t at = (size_t)((k * kh + i) * kw + j);
                double wanted = real[at] / scale;
                for (int s = 1; s < 8; s++) {
                    const int di = s >> 2, dj = s >> 1 & 1, dk = s & 1;
                    const double along = di + dj == 2 ? kAlong * kAlong : di + dj == 1 ? -kAlong : 1.0;
                    const double factor = -along * (dk ? -kAcross : 1.0);
                    wanted += factor * owed[(size_t)(((i + 1 - di) * rows + (j + 1 - dj)) * lanes + (k + 1 - dk))];
                }
                const double whole = std::nearbyint(wanted);
                taps[at] = (int16_t)whole;
                owed[(size_t)(((i + 1) * rows + (j + 1)) * lanes + (k + 1))] = wanted - whole;
            }
}

// -`part` [kh][kw] in whole numbers, and what 255 times their sum lacks of the real sum. At a border the taps inside are a
// rectangle, so sums from the first tap to each are rounded, not the taps.
void round_means(const std::vector<double> &part, int64_t kh, int64_t kw, int32_t *taps, int32_t *rest) {
    const int64_t row = kw + 1;
    std::vector<double> sums((size_t)((kh + 1) * row)), whole(sums.size());
    for (int64_t i = 0; i < kh; i++) {
        double line = 0;
        for (int64_t j = 0; j < kw; j++) {
            line = line - part[(size_t)(i * kw + j)];
            sums[(size_t)((i + 1) * row + j + 1)] = sums[(size_t)(i * row + j + 1)] + line;
        }
    }
    for (size_t i = 0; i < sums.size(); i++) whole[i] = std::nearbyint(sums[i]);
    const auto at = [&](int64_t i, int64_t j) { return whole[(size_t)(i * row + j)]; };
    for (int64_t i = 0; i < kh; i++)
        for (int64_t j = 0; j < kw; j++) taps[i * kw + j] = (int32_t)(at(i + 1, j + 1) - at(i, j + 1) - at(i + 1, j) + at(i, j));
    *rest = (int32_t)std::nearbyint(255.0 * (sums.back() - whole.back()));
}

// What stem/image_quad.inl and image_eight.inl multiply with besides the taps of a channel [7][7] themselves: sums of two to
// eight of them, those of the rows of a number's bits.
void add_row_sums(const double *taps, std::vector<double> &out) {
    for (const int bits : {0x05, 0x0a, 0x50, 0x11, 0x22, 0x44, 0x55, 0x2a}) {
        const auto rows = [&](int j) {
            double sum = 0;
            for (int i = 0; i < 7; i++) sum += bits >> i & 1 ? taps[i * 7 + j] : 0;
            return sum;
        };
        for (int j = 0; j < 7; j++) out.push_back(rows(j));
        for (const int j : {0, 1, 4}) out.push_back(rows(j) + rows(j + 2));
    }
}

double largest(const std::vector<double> &values) {
    double most = 0;
    for (const double v : values) most = std::max(most, std::abs(v));
    return most;
}

}  // namespace

ByteFilters round_filters(const std::vector<float> &weight, int64_t o, int64_t c, int64_t kh, int64_t kw,
                          const std::vector<double> &mean, const std::vector<double> &std, int64_t stride, bool sums_of_rows) {
    const size_t taps = (size_t)(kh * kw), inputs = taps * (size_t)c;
    const double off = offset_of(mean), room = room_of(c, kh, kw, off);
    ByteFilters out;
    out.taps.resize((size_t)o * inputs), out.mean.resize((size_t)o * taps), out.rest.resize((size_t)o), out.scale.resize((size_t)o);
    std::vector<double> real(inputs), part(taps), pairs;
    const auto over_channels = [&](auto value) {
        std::fill(part.begin(), part.end(), 0.0);
        for (size_t k = 0; k < (size_t)c; k++)
            for (size_t t = 0; t < taps; t++) part[t] = part[t] + value(k * taps + t) * (double)(float)mean[k];
    };
    for (size_t f = 0; f < (size_t)o; f++) {
        for (size_t k = 0; k < (size_t)c; k++)
            for (size_t t = 0; t < taps; t++)
                real[k * taps + t] = (double)weight[f * inputs + k * taps + t] / (255.0 * (double)(float)std[k]);
        over_channels([&](size_t i) { return real[i]; });
        double size = std::max(largest(real) / (kLargest - 8), largest(part) / (kLargest - off));
        if (c == 3 && kw == 7 && stride == 2) {
            pairs.clear();
            for (size_t row = 0; row < inputs / 7; row++)
                for (size_t j = 0; j < 5; j++) pairs.push_back(real[row * 7 + j] + real[row * 7 + j + 2]);
            size = std::max(size, largest(pairs) / (kLargest - 8));
            pairs.clear();
            for (size_t k = 0; k < 3 && sums_of_rows && kh == 7; k++) add_row_sums(real.data() + k * taps, pairs);
            size = std::max(size, largest(pairs) / (kLargest - 32));
        }
        size = std::max(size, (absolute_sum(real.data(), inputs) + absolute_sum(part.data(), taps)) / room);
        float scale = (float)size;
        if ((double)scale < size) scale = std::nextafter(scale, INFINITY);
        if (!(scale > 0)) scale = 1;
        out.scale[f] = scale;
        round_filter(real, (double)scale, c, kh, kw, out.taps.data() + f * inputs);
        over_channels([&](size_t i) { return (double)out.taps[f * inputs + i]; });
        round_means(part, kh, kw, out.mean.data() + f * taps, &out.rest[f]);
    }
    return out;
}

int byte_step(const Program &p, const std::vector<PlanStep> &steps, ByteRule rule) {
    int reader = -1;
    for (size_t i = 0; i < steps.size(); i++) {
        if (std::find(steps[i].reads.begin(), steps[i].reads.end(), 0) == steps[i].reads.end()) continue;
        if (reader >= 0) return -1;
        reader = (int)i;
    }
    if (reader < 0 || !only_filters_read_input(p, steps)) return -1;
    const PlanStep &step = steps[(size_t)reader];
    const Operation &op = p.ops[(size_t)step.op];
    if (op.tensor("byte_weight") >= 0) return reader;
    if (op.op != "conv2d" && op.op != "bitweight_conv2d") return -1;
    const auto kernel = window_of(*p.tensor(op, "weight"));
    const bool large = std::min(kernel.first, kernel.second) >= kLargeKernel &&
                       std::min(op.integer("stride", 0), op.integer("stride", 1)) >= kLargeStride;
    if (rule == ByteRule::Stated ? !(large && p.version == 1) : !(large || rule == ByteRule::Any)) return -1;
    if (op.integer("groups") != 1 || op.integer("dilation", 1) != 1) return -1;
    double means = 0, least = INFINITY;
    for (const double m : p.mean) means += std::abs(m);
    for (const double s : p.std) least = std::min(least, s);
    if (means > 16 || least < kLeastStd || p.input_shape[0] * kernel.first * kernel.second > kMostStemTaps) return -1;
    if (p.tensor(op, "weight")->is_real())
        for (const float w : floats_of(*p.tensor(op, "weight")))
            if (!(std::abs(w) <= kLargestWeight)) return -1;
    return reader;
}

std::vector<float> real_filters(const Program &p, const Operation &op) {
    const Tensor &weight = *p.tensor(op, "weight");
    if (weight.is_real()) return floats_of(weight);
    const Value &source = p.values[(size_t)op.inputs[0]];
    const bool image = weight.shape.size() == 4;
    const auto kernel = window_of(weight);
    const size_t o = (size_t)weight.shape[0], taps = (size_t)(kernel.first * kernel.second), width = (size_t)weight.shape.back();
    const size_t fan = (size_t)(image ? source.channels() / op.integer("groups") : source.channels());
    std::vector<float> out(o * fan * taps);
    for (size_t f = 0; f < o; f++)
        for (size_t t = 0; t < taps; t++)
            for (size_t c = 0; c < fan; c++)
                out[(f * fan + c) * taps + t] = weight.data[(f * taps + t) * width + c / 8] >> c % 8 & 1 ? 1.0f : -1.0f;
    return out;
}

std::vector<int16_t> whole_taps(const Program &p, const Operation &op) {
    const std::vector<int32_t> taps = integers_of(*p.tensor(op, "weight"));
    return std::vector<int16_t>(taps.begin(), taps.end());
}

WholeFilters whole_filters(const Program &p, const Operation &op) {
    const Tensor &weight = *p.tensor(op, "weight");
    WholeFilters out;
    out.steps = (float)op.attrs.find("steps")->number(), out.limit = (float)op.integer("limit");
    for (const float scale : floats_of(p.tensors[(size_t)weight.scale])) out.scale.push_back(scale / out.steps);
    return out;
}

ByteFilters byte_filters(const Program &p, const PlanStep &step) {
    const Operation &op = p.ops[(size_t)step.op];
    const Tensor *given = p.tensor(op, "byte_weight");
    if (given) {
        ByteFilters out;
        const auto taps = integers_of(*given);
        out.taps.assign(taps.begin(), taps.end());
        out.mean = integers_of(*p.tensor(op, "byte_mean")), out.rest = integers_of(*p.tensor(op, "byte_rest"));
        out.scale = floats_of(*p.tensor(op, "byte_scale"));
        return out;
    }
    const auto kernel = window_of(*p.tensor(op, "weight"));
    // Engines of version 1 round by themselves, and always as they did first.
    const bool sums_of_rows = p.version >= 2 && op.integer("stride", 0) == 2 && op.integer("dilation", 0) == 1;
    return round_filters(real_filters(p, op), step.shape[0], p.input_shape[0], kernel.first, kernel.second, p.mean, p.std,
                         op.integer("stride", 1), sums_of_rows);
}

}  // namespace xnorpp
