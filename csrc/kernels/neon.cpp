// NEON (AArch64): every 64-bit ARM.
//
// The dot product. Eight channels of a pixel are one byte, broadcast to 16 lanes; each lane holds the same byte of another
// filter. eor, cnt, add: three operations for 128 multiply-adds. A byte sum holds 31 counts of at most 8, then
// it is added to 16-bit sums.
#include <arm_neon.h>

#include "kernels.h"

namespace xnorpp {
namespace {

constexpr int N = 8;
constexpr int kFloatTile = 6;
constexpr bool kWideCounts = false;  // results of the bit kernel are 32-bit
struct F {
    float32x4_t a, b;
};
struct I {
    int32x4_t a, b;
};

using Real = float32x4_t;  // curves.inl
typedef int Whole __attribute__((vector_size(16)));
constexpr int kReals = 4;
inline Real exact_fma(Real a, Real b, Real c) { return vfmaq_f32(c, a, b); }
inline Real root(Real a) { return vsqrtq_f32(a); }
inline Real spread(float x) { return vdupq_n_f32(x); }

inline F load(const float *p) { return {vld1q_f32(p), vld1q_f32(p + 4)}; }
inline void store(float *p, F v) { vst1q_f32(p, v.a), vst1q_f32(p + 4, v.b); }
inline F set1(float x) { return {vdupq_n_f32(x), vdupq_n_f32(x)}; }
inline F zero() { return set1(0.0f); }
inline F add(F x, F y) { return {vaddq_f32(x.a, y.a), vaddq_f32(x.b, y.b)}; }
inline F mul(F x, F y) { return {vmulq_f32(x.a, y.a), vmulq_f32(x.b, y.b)}; }
inline F div(F x, F y) { return {vdivq_f32(x.a, y.a), vdivq_f32(x.b, y.b)}; }
inline F fma(F x, F y, F z) { return {vfmaq_f32(z.a, x.a, y.a), vfmaq_f32(z.b, x.b, y.b)}; }
inline F multiply_add(F a, F b, F c) { return fma(a, b, c); }  // an affine step: rounded once
// fmax and fmin give NaN where one operand is NaN.
inline F max_nan(F x, F y) { return {vmaxq_f32(x.a, y.a), vmaxq_f32(x.b, y.b)}; }
inline F relu(F v) { return max_nan(v, zero()); }
inline F clamp(F v, F lo, F hi) {
    const F x = max_nan(v, lo);
    return {vminq_f32(x.a, hi.a), vminq_f32(x.b, hi.b)};
}
inline F prelu(F v, F slope) {
    const F scaled = mul(v, slope);
    return {vbslq_f32(vcgtzq_f32(v.a), v.a, scaled.a), vbslq_f32(vcgtzq_f32(v.b), v.b, scaled.b)};
}
inline F leaky(F v, F slope) { return prelu(v, slope); }
inline float32x4_t xor4(float32x4_t v, float32x4_t m) {
    return vreinterpretq_f32_u32(veorq_u32(vreinterpretq_u32_f32(v), vreinterpretq_u32_f32(m)));
}
inline F xor_sign(F v, F mask) { return {xor4(v.a, mask.a), xor4(v.b, mask.b)}; }
inline unsigned greater(F x, F y) {
    const uint32x4_t low = {1, 2, 4, 8}, high = {16, 32, 64, 128};
    return vaddvq_u32(vorrq_u32(vandq_u32(vcgtq_f32(x.a, y.a), low), vandq_u32(vcgtq_f32(x.b, y.b), high)));
}
// base - 2*count: integers below 2**24, so nothing is rounded.
inline F from_counts16(const float *base, const uint16_t *counts) {
    const uint16x8_t n = vld1q_u16(counts);
    const float32x4_t low = vcvtq_f32_u32(vmovl_u16(vget_low_u16(n))), high = vcvtq_f32_u32(vmovl_high_u16(n));
    return {vfmaq_n_f32(vld1q_f32(base), low, -2.0f), vfmaq_n_f32(vld1q_f32(base + 4), high, -2.0f)};
}
inline F from_counts32(const float *base, const int32_t *counts) {
    const float32x4_t low = vcvtq_f32_s32(vld1q_s32(counts)), high = vcvtq_f32_s32(vld1q_s32(counts + 4));
    return {vfmaq_n_f32(vld1q_f32(base), low, -2.0f), vfmaq_n_f32(vld1q_f32(base + 4), high, -2.0f)};
}
inline I add_ints(I v, const int32_t *p) { return {vaddq_s32(v.a, vld1q_s32(p)), vaddq_s32(v.b, vld1q_s32(p + 4))}; }
inline I zero_ints() { return {vdupq_n_s32(0), vdupq_n_s32(0)}; }
inline F load_sums(const int32_t *p, const int32_t *q) {
    const I sum = add_ints({vld1q_s32(p), vld1q_s32(p + 4)}, q);
    return {vcvtq_f32_s32(sum.a), vcvtq_f32_s32(sum.b)};
}
inline F to_floats(I v) { return {vcvtq_f32_s32(v.a), vcvtq_f32_s32(v.b)}; }
inline I load_ints(const int32_t *p) { return {vld1q_s32(p), vld1q_s32(p + 4)}; }
inline I max_ints(I a, I b) { return {vmaxq_s32(a.a, b.a), vmaxq_s32(a.b, b.b)}; }
inline I xor_ints(I a, I b) { return {veorq_s32(a.a, b.a), veorq_s32(a.b, b.b)}; }
inline void store_ints(int32_t *p, I v) { vst1q_s32(p, v.a), vst1q_s32(p + 4, v.b); }
inline I load_pairs(const int16_t *p) {
    return {vreinterpretq_s32_s16(vld1q_s16(p)), vreinterpretq_s32_s16(vld1q_s16(p + 8))};
}
inline I set1_pair(const int16_t *p) {
    int32_t pair;
    __builtin_memcpy(&pair, p, 4);
    return {vdupq_n_s32(pair), vdupq_n_s32(pair)};
}
inline int32x4_t dot4(int32x4_t sum, int32x4_t a, int32x4_t w) {
    const int16x8_t x = vreinterpretq_s16_s32(a), y = vreinterpretq_s16_s32(w);
    const int32x4_t low = vmull_s16(vget_low_s16(x), vget_low_s16(y)), high = vmull_high_s16(x, y);
    return vaddq_s32(sum, vpaddq_s32(low, high));
}
inline I dot_pairs(I sum, I a, I w) { return {dot4(sum.a, a.a, w.a), dot4(sum.b, a.b, w.b)}; }

struct BitDot {
    using Unit = uint8_t;
    using Result = uint16_t;
    static constexpr int kTile = 8, kPair = 1, kSlack = 16, kWeightBytes = kBlock;
    static constexpr bool kBits = true;
    static constexpr int kBlocks = 1;
    static constexpr bool kLimits = false;
    static constexpr long kMostUnits = 8191;  // 65535 bits a count

    static void prepare(const Conv &k, const void *in, int row, uint8_t *out, char *spare);

    template <int P>
    static void dot_pixels(const uint8_t *const *bases, const Segment *segments, int count, const uint8_t *w,
                           uint16_t *result) {
        uint8x16_t sum[P][2];
        for (int i = 0; i < P; i++) sum[i][0] = sum[i][1] = vdupq_n_u8(0);
        for (int i = 0; i < P * kBlock; i++) result[i] = 0;
        int left = 31;
        for (int s = 0; s < count; s++) {
            const uint8_t *p[P];
            for (int i = 0; i < P; i++) p[i] = bases[i] + segments[s].offset;
            for (int u = 0; u < segments[s].length; u++, w += kBlock) {
                const uint8x16_t w0 = vld1q_u8(w), w1 = vld1q_u8(w + 16);
#pragma GCC unroll 8
                for (int i = 0; i < P; i++) {
                    const uint8x16_t a = vdupq_n_u8(p[i][u]);
                    sum[i][0] = vaddq_u8(sum[i][0], vcntq_u8(veorq_u8(a, w0)));
                    sum[i][1] = vaddq_u8(sum[i][1], vcntq_u8(veorq_u8(a, w1)));
                }
                if (--left == 0 || (s == count - 1 && u == segments[s].length - 1)) {
                    for (int i = 0; i < P; i++)
                        for (int h = 0; h < 2; h++) {
                            uint16_t *to = result + i * kBlock + h * 16;
                            vst1q_u16(to, vaddw_u8(vld1q_u16(to), vget_low_u8(sum[i][h])));
                            vst1q_u16(to + 8, vaddw_high_u8(vld1q_u16(to + 8), sum[i][h]));
                            sum[i][h] = vdupq_n_u8(0);
                        }
                    left = 31;
                }
            }
        }
    }

    static void dot(const uint8_t *const *bases, int n, const Segment *segments, int count, const void *panel,
                    uint16_t *result) {
        const uint8_t *w = (const uint8_t *)panel;
        if (n == kTile) return dot_pixels<kTile>(bases, segments, count, w, result);
        for (int i = 0; i < n; i++) dot_pixels<1>(bases + i, segments, count, w, result + i * kBlock);
    }
};

}  // namespace

#include "curves.inl"
#include "norm.inl"
#include "product.inl"
#include "epilogue.inl"
#include "conv.inl"
#include "real/pointwise.inl"
#include "real/grouped.inl"
#include "stem/whole.inl"
#include "stem/image_pair.inl"
#include "stem/image_quad.inl"
#include "stem/image_eight.inl"
#include "pool.inl"
#include "transpose.inl"
#include "stem/pooled.inl"

namespace {

// A pixel's group keeps only the bytes that hold channels.
void BitDot::prepare(const Conv &k, const void *in, int row, uint8_t *out, char *spare) {
    const uint32_t *words = padded_words(k, (const uint32_t *)in, row, (uint32_t *)spare);
    for (int x = 0; x < k.cols * k.groups; x++)
        __builtin_memcpy(out + (size_t)x * k.units, words + (size_t)x * k.words, (size_t)k.units);
}

auto places(const Conv &k) {
    return [&k](char *panel, int lane, int tap, int j) -> uint8_t & { return ((uint8_t *)panel)[((size_t)tap * k.units + j) * kBlock + lane]; };
}
void pack_bits(const Conv &k, const uint8_t *weight, void *panels) { move_in(k, weight, panels, 8, places(k)); }
void unpack_bits(const Conv &k, const void *panels, uint8_t *weight) { move_back(k, panels, weight, 8, places(k)); }

}  // namespace

#include "table.inl"

const Kernels *neon_kernels() {
    static constexpr Kernels kernels = table("neon", {1, 8, kBlock, 16, 0}, conv_rows<BitDot>, false, 1);
    return &kernels;
}

}  // namespace xnorpp
