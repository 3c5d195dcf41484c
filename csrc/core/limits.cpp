// Signs straight from counts. Where a binary convolution's only result is the next layer's bits, and between dot product
// and sign stand only factors, sums and activations that never turn downwards, each bit is a step function of the count
// of differing bits: every operation rounds monotonely, so the step is found by bisection with the very operations that the
// epilogue would do, and no bit can come out otherwise. The epilogue is then one comparison of 16-bit numbers.
#include <cmath>

#include "engine.h"

namespace xnorpp {
namespace {

constexpr long kMostCount = 32766;           // a limit is one more, and 16 bits are compared with their sign
constexpr size_t kMostLimits = (size_t)1 << 18;  // more are not worth the time at load

// One channel's way from the dot product to the sign.
class Line {
  public:
    Line(const std::vector<StageSpec> &stages, int channel) : stages_(stages), c_(channel) {}

    bool bit(float v) const {
        for (size_t i = 0; i + 1 < stages_.size(); i++) v = after(stages_[i], c_, v);
        const StageSpec &sign = stages_.back();
        return (sign.flip.as<const uint32_t>()[c_] ? -v : v) > sign.a.as<const float>()[c_];
    }
    bool stays_finite(float v) const {
        for (size_t i = 0; i + 1 < stages_.size(); i++)
            if (!std::isfinite(v = after(stages_[i], c_, v))) return false;
        return true;
    }

  private:
    const std::vector<StageSpec> &stages_;
    int c_;
};

}  // namespace

bool never_falls(const StageSpec &stage, int channels) {
    switch (stage.kind) {
        case StageKind::Affine:  // falls where the factor is negative: for all numbers alike
        case StageKind::Relu: return true;
        case StageKind::Hardtanh: return stage.lo <= stage.hi;
        case StageKind::Prelu:
            for (int c = 0; c < channels; c++)
                if (!(stage.a.as<const float>()[c] >= 0)) return false;
            return true;
        default: return false;
    }
}

float after(const StageSpec &stage, int c, float v) {
    const float *a = stage.a.as<const float>();
    switch (stage.kind) {
        case StageKind::Affine: return std::fma(v, a[c], stage.b.as<const float>()[c]);
        case StageKind::Relu: return v < 0 ? 0 : v;
        case StageKind::Prelu: return v > 0 ? v : v * a[c];
        default: return v < stage.lo ? stage.lo : v > stage.hi ? stage.hi : v;
    }
}

void make_limits(Step &step) {
    if (step.kind != StepKind::Conv || !is_binary(step.conv->source) || step.stages.empty()) return;
    const Conv &k = step.conv->conv;
    const std::vector<StageSpec> &stages = step.stages;
    const StageSpec &sign = stages.back();
    const long most = (long)k.kh * k.kw * k.fan;
    int row_cases = 0;
    for (const uint16_t at : step.conv->row_case) row_cases = at >= row_cases ? at + 1 : row_cases;
    const size_t cases = (size_t)row_cases * k.col_cases, padded = (size_t)k.channels_padded;
    if (k.groups != 1 || most > kMostCount || cases * padded > kMostLimits) return;
    if (sign.kind != StageKind::Sign || sign.map.as() || sign.full.as() || !is_fusable(stages)) return;
    for (size_t i = 0; i + 1 < stages.size(); i++)
        if (!never_falls(stages[i], step.c)) return;

    Buffer limits(cases * padded * 2), turn(padded / kBlock * 4);
    for (int c = 0; c < step.c; c++) {
        const Line line(stages, c);
        int direction = 0;  // 1 where a greater count sets the bit
        for (size_t i = 0; i < cases; i++) {
            const float base = k.base[i * padded + c];
            const auto bit = [&](long count) { return line.bit(base - 2.0f * (float)count); };
            if (!line.stays_finite(base) || !line.stays_finite(base - 2.0f * (float)most)) return;
            const bool first = bit(0), last = bit(most);
            long low = 0, high = most;  // bit(low) == first, bit(high) == last
            while (first != last && high - low > 1) {
                const long middle = (low + high) / 2;
                (bit(middle) == first ? low : high) = middle;
            }
            if (first != last && direction == (last ? -1 : 1)) return;
            if (first != last) direction = last ? 1 : -1;
            // Until the direction is known, a bit that never changes is noted as if it were -1.
            limits.as<int16_t>()[i * padded + c] = (int16_t)(first != last ? high : first ? most + 1 : 0);
        }
        if (direction != 1) continue;
        turn.as<uint32_t>()[c / kBlock] |= 1u << c % kBlock;
        for (size_t i = 0; i < cases; i++) {  // bits that never change: the other way round
            int16_t &limit = limits.as<int16_t>()[i * padded + c];
            if (limit == 0 || limit == most + 1) limit = limit ? 0 : (int16_t)(most + 1);
        }
    }
    step.limits = std::move(limits), step.turn = std::move(turn);
}

}  // namespace xnorpp
