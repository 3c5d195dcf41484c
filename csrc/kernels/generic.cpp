// Plain C++17: runs everywhere, and is written so that a compiler's own vectoriser can work on it.
//
// The dot product. 32 channels of a pixel are one word; xor with the same word of 32 filters and count the
// differing bits of each filter with the usual sums of neighbouring bit fields.
#include "kernels.h"

namespace xnorpp {
namespace {

constexpr int N = 8;
constexpr int kFloatTile = 4;
constexpr bool kWideCounts = true;  // results of the bit kernel are 32-bit
struct F {
    float v[N];
};
struct I {
    int32_t v[N];
};

using Real = float;  // curves.inl
using Whole = int;
constexpr int kReals = 1;
inline Real exact_fma(Real a, Real b, Real c) { return __builtin_fmaf(a, b, c); }
inline Real root(Real a) { return __builtin_sqrtf(a); }
inline Real spread(float x) { return x; }

template <class Op>
inline F each(Op op) {
    F r;
    for (int i = 0; i < N; i++) r.v[i] = op(i);
    return r;
}
inline F load(const float *p) {
    F r;
    __builtin_memcpy(r.v, p, sizeof r.v);  // a bit pattern (a sign mask) passes unchanged too
    return r;
}
inline void store(float *p, F a) { __builtin_memcpy(p, a.v, sizeof a.v); }
inline F set1(float x) { return each([&](int) { return x; }); }
inline F zero() { return set1(0.0f); }
inline F add(F a, F b) { return each([&](int i) { return a.v[i] + b.v[i]; }); }
inline F mul(F a, F b) { return each([&](int i) { return a.v[i] * b.v[i]; }); }
inline F div(F a, F b) { return each([&](int i) { return a.v[i] / b.v[i]; }); }
inline F fma(F a, F b, F c) { return each([&](int i) { return a.v[i] * b.v[i] + c.v[i]; }); }
// An affine step: rounded once. The product is exact in double; the sum is rounded to odd, so that it never looks like the
// middle of two floats when it is not (reference.py does the same). Long, and in every line: not inline.
__attribute__((noinline)) F multiply_add(F a, F b, F c) {
    return each([&](int i) {
        const double product = (double)a.v[i] * b.v[i], summand = c.v[i], total = product + summand, back = total - product;
        const double lost = (product - (total - back)) + (summand - back);  // exactly what the sum lost; NaN at infinities
        int64_t bits;
        __builtin_memcpy(&bits, &total, sizeof bits);
        const int64_t toward = (lost > 0) - (lost < 0), outward = bits < 0 ? -toward : toward;
        bits += bits & 1 ? 0 : outward;
        double odd;
        __builtin_memcpy(&odd, &bits, sizeof odd);
        return (float)odd;
    });
}
// Written so that a NaN fails the comparison and stays.
inline F relu(F a) { return each([&](int i) { return a.v[i] < 0.0f ? 0.0f : a.v[i]; }); }
inline F clamp(F a, F lo, F hi) {
    return each([&](int i) { return a.v[i] < lo.v[i] ? lo.v[i] : a.v[i] > hi.v[i] ? hi.v[i] : a.v[i]; });
}
inline F prelu(F a, F slope) { return each([&](int i) { return a.v[i] > 0.0f ? a.v[i] : a.v[i] * slope.v[i]; }); }
inline F leaky(F a, F slope) { return prelu(a, slope); }
inline F max_nan(F a, F b) { return each([&](int i) { return a.v[i] >= b.v[i] || a.v[i] != a.v[i] ? a.v[i] : b.v[i]; }); }
inline F xor_sign(F a, F mask) {
    uint32_t x[N], m[N];
    __builtin_memcpy(x, a.v, sizeof x);
    __builtin_memcpy(m, mask.v, sizeof m);
    for (int i = 0; i < N; i++) x[i] ^= m[i];
    __builtin_memcpy(a.v, x, sizeof x);
    return a;
}
inline unsigned greater(F a, F b) {
    unsigned bits = 0;
    for (int i = 0; i < N; i++) bits |= (unsigned)(a.v[i] > b.v[i]) << i;
    return bits;
}
inline F from_counts16(const float *base, const uint16_t *n) { return each([&](int i) { return base[i] - 2.0f * (float)n[i]; }); }
inline F from_counts32(const float *base, const int32_t *n) { return each([&](int i) { return base[i] - 2.0f * (float)n[i]; }); }
inline I add_ints(I a, const int32_t *p) {
    for (int i = 0; i < N; i++) a.v[i] = (int32_t)((uint32_t)a.v[i] + (uint32_t)p[i]);
    return a;
}
inline I zero_ints() { return I{}; }
inline F load_sums(const int32_t *p, const int32_t *q) { return each([&](int i) { return (float)(int32_t)((uint32_t)p[i] + (uint32_t)q[i]); }); }
inline F to_floats(I a) { return each([&](int i) { return (float)a.v[i]; }); }
inline I load_ints(const int32_t *p) {
    I r;
    __builtin_memcpy(r.v, p, sizeof r.v);
    return r;
}
inline I max_ints(I a, I b) {
    for (int i = 0; i < N; i++) a.v[i] = a.v[i] > b.v[i] ? a.v[i] : b.v[i];
    return a;
}
inline I xor_ints(I a, I b) {
    for (int i = 0; i < N; i++) a.v[i] ^= b.v[i];
    return a;
}
inline void store_ints(int32_t *p, I a) { __builtin_memcpy(p, a.v, sizeof a.v); }
inline I load_pairs(const int16_t *p) {
    I r;
    __builtin_memcpy(r.v, p, sizeof r.v);
    return r;
}
inline I set1_pair(const int16_t *p) {
    I r;
    for (int i = 0; i < N; i++) __builtin_memcpy(&r.v[i], p, 4);
    return r;
}
inline I dot_pairs(I sum, I a, I w) {
    int16_t x[2 * N], y[2 * N];
    __builtin_memcpy(x, a.v, sizeof x);
    __builtin_memcpy(y, w.v, sizeof y);
    // A sum on its way may leave 32 bits and come back: unsigned, where that is allowed.
    for (int i = 0; i < N; i++)
        sum.v[i] = (int32_t)((uint32_t)sum.v[i] + (uint32_t)((int32_t)x[2 * i] * y[2 * i]) + (uint32_t)((int32_t)x[2 * i + 1] * y[2 * i + 1]));
    return sum;
}

inline uint32_t popcount(uint32_t x) {
    x = x - ((x >> 1) & 0x55555555u);
    x = (x & 0x33333333u) + ((x >> 2) & 0x33333333u);
    x = (x + (x >> 4)) & 0x0f0f0f0fu;
    x = x + (x >> 8);
    return (x + (x >> 16)) & 63u;
}

struct BitDot {
    using Unit = uint32_t;
    using Result = int32_t;
    static constexpr int kTile = 4, kPair = 1, kSlack = 16, kWeightBytes = 4 * kBlock;
    static constexpr bool kBits = true;
    static constexpr int kBlocks = 1;
    static constexpr bool kLimits = false;
    static constexpr long kMostUnits = 1L << 26;

    static void prepare(const Conv &k, const void *in, int row, uint32_t *out, char *spare);

    static void dot(const uint32_t *const *bases, int n, const Segment *segments, int count, const void *panel,
                    int32_t *result) {
        for (int i = 0; i < n; i++) {
            const uint32_t *w = (const uint32_t *)panel;
            uint32_t sums[kBlock] = {};
            for (int s = 0; s < count; s++) {
                const uint32_t *p = bases[i] + segments[s].offset;
                for (int u = 0; u < segments[s].length; u++, w += kBlock)
                    for (int l = 0; l < kBlock; l++) sums[l] += popcount(p[u] ^ w[l]);
            }
            for (int l = 0; l < kBlock; l++) result[i * kBlock + l] = (int32_t)sums[l];
        }
    }
};

}  // namespace

// Clang checks the branch for vectors in curves.inl although it is never taken, and Real is no vector here.
#if defined(__clang__)
#define __builtin_convertvector(number, To) ((To)(number))
#endif
#include "curves.inl"
#include "product.inl"
#include "epilogue.inl"
#include "conv.inl"
#include "real_pointwise.inl"
#include "real_grouped.inl"
#include "stem/whole.inl"
#include "stem/image_pair.inl"
#include "stem/image_quad.inl"
#include "stem/image_eight.inl"
#include "pool.inl"
#include "transpose.inl"
#include "stem/pooled.inl"

namespace {

void BitDot::prepare(const Conv &k, const void *in, int row, uint32_t *out, char *spare) {
    const uint32_t *words = padded_words(k, (const uint32_t *)in, row, (uint32_t *)spare);
    __builtin_memcpy(out, words, (size_t)k.row_units * 4);
}

void pack_bits(const Conv &k, const uint8_t *weight, void *panels) {
    each_weight(k, panels, k.units, [&](char *panel, int o, int lane, int tap, int j) {
        ((uint32_t *)panel)[((size_t)tap * k.units + j) * kBlock + lane] = weight_bits(k, weight, o, tap, j * 32, 32);
    });
}

}  // namespace

#include "table.inl"

const Kernels *generic_kernels() {
    static constexpr Kernels kernels = table("generic", {4, 32, 4 * kBlock, 16, 0}, conv_rows<BitDot>, false, 1);
    return &kernels;
}

}  // namespace xnorpp
