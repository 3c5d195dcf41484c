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
// Vectors of GCC and Clang, which take what the processor has, or plain numbers: compilers need half the time that loops over
// arrays take them. Two of 16 bytes, because longer ones are passed differently from one processor to the next.
typedef float F4 __attribute__((vector_size(16)));
typedef int32_t I4 __attribute__((vector_size(16)));
typedef uint32_t U4 __attribute__((vector_size(16)));
struct F {
    F4 low, high;
};
struct I {
    I4 low, high;
};

using Real = float;  // curves.inl
using Whole = int;
constexpr int kReals = 1;
inline Real exact_fma(Real a, Real b, Real c) { return __builtin_fmaf(a, b, c); }
inline Real root(Real a) { return __builtin_sqrtf(a); }
inline Real spread(float x) { return x; }

// op of the halves of V, which is F or I.
template <class V, class Op, class... From>
inline V halves(Op op, From... from) {
    return {op(from.low...), op(from.high...)};
}
template <class Op>
inline F each(Op op) {
    F r;
    for (int i = 0; i < 4; i++) r.low[i] = op(i), r.high[i] = op(i + 4);
    return r;
}
// A bit pattern (a sign mask) passes unchanged too.
template <class V>
inline V load_as(const void *p) {
    V r;
    __builtin_memcpy(&r, p, sizeof r);
    return r;
}
inline F load(const float *p) { return load_as<F>(p); }
inline void store(float *p, F a) { __builtin_memcpy(p, &a, sizeof a); }
inline F set1(float x) { return {F4{x, x, x, x}, F4{x, x, x, x}}; }
inline F zero() { return {F4{}, F4{}}; }
inline F add(F a, F b) { return {a.low + b.low, a.high + b.high}; }
inline F mul(F a, F b) { return {a.low * b.low, a.high * b.high}; }
inline F div(F a, F b) { return {a.low / b.low, a.high / b.high}; }
inline F fma(F a, F b, F c) { return {a.low * b.low + c.low, a.high * b.high + c.high}; }
// An affine step: rounded once. The product is exact in double; the sum is rounded to odd, so that it never looks like the
// middle of two floats when it is not (reference.py does the same). Long, and in every line: not inline.
inline float multiply_add(float a, float b, float c) {
    const double product = (double)a * b, summand = c, total = product + summand, back = total - product;
    const double lost = (product - (total - back)) + (summand - back);  // exactly what the sum lost; NaN at infinities
    int64_t bits;
    __builtin_memcpy(&bits, &total, sizeof bits);
    const int64_t toward = (lost > 0) - (lost < 0), outward = bits < 0 ? -toward : toward;
    bits += bits & 1 ? 0 : outward;
    double odd;
    __builtin_memcpy(&odd, &bits, sizeof odd);
    return (float)odd;
}
__attribute__((noinline)) F multiply_add(F a, F b, F c) {
    F r;
    for (int i = 0; i < 4; i++) {
        r.low[i] = multiply_add(a.low[i], b.low[i], c.low[i]);
        r.high[i] = multiply_add(a.high[i], b.high[i], c.high[i]);
    }
    return r;
}
// Written so that a NaN fails the comparison and stays.
inline F relu(F a) {
    return halves<F>([](F4 v) { return v < F4{} ? F4{} : v; }, a);
}
inline F clamp(F a, F lo, F hi) {
    return halves<F>([](F4 v, F4 least, F4 most) { return v < least ? least : (v > most ? most : v); }, a, lo, hi);
}
inline F prelu(F a, F slope) {
    return halves<F>([](F4 v, F4 s) { return v > F4{} ? v : v * s; }, a, slope);
}
inline F leaky(F a, F slope) { return prelu(a, slope); }
inline F max_nan(F a, F b) {
    return halves<F>([](F4 v, F4 w) { return v >= w ? v : (v != v ? v : w); }, a, b);
}
inline F xor_sign(F a, F mask) {
    return halves<F>([](F4 v, F4 m) { return (F4)((I4)v ^ (I4)m); }, a, mask);
}
inline unsigned greater(F a, F b) {
    const U4 bits = ((U4)(a.low > b.low) & U4{1, 2, 4, 8}) | ((U4)(a.high > b.high) & U4{16, 32, 64, 128});
    return bits[0] | bits[1] | bits[2] | bits[3];
}
inline I load_ints(const int32_t *p) { return load_as<I>(p); }
inline F to_floats(I a) {
    return halves<F>([](I4 v) { return __builtin_convertvector(v, F4); }, a);
}
inline F from_counts(F base, F counts) {
    return halves<F>([](F4 b, F4 n) { return b - 2.0f * n; }, base, counts);
}
inline F from_counts16(const float *base, const uint16_t *n) {
    return from_counts(load(base), each([&](int i) { return (float)n[i]; }));
}
inline F from_counts32(const float *base, const int32_t *n) { return from_counts(load(base), to_floats(load_ints(n))); }
inline I add_ints(I a, const int32_t *p) {
    return halves<I>([](I4 v, I4 w) { return (I4)((U4)v + (U4)w); }, a, load_ints(p));
}
inline I zero_ints() { return {I4{}, I4{}}; }
inline F load_sums(const int32_t *p, const int32_t *q) { return to_floats(add_ints(load_ints(p), q)); }
inline I max_ints(I a, I b) {
    return halves<I>([](I4 v, I4 w) { return v > w ? v : w; }, a, b);
}
inline I xor_ints(I a, I b) { return {a.low ^ b.low, a.high ^ b.high}; }
inline void store_ints(int32_t *p, I a) { __builtin_memcpy(p, &a, sizeof a); }
inline I load_pairs(const int16_t *p) { return load_as<I>(p); }
inline I set1_pair(const int16_t *p) {
    int32_t pair;
    __builtin_memcpy(&pair, p, sizeof pair);
    return {I4{pair, pair, pair, pair}, I4{pair, pair, pair, pair}};
}
inline I dot_pairs(I sum, I a, I w) {
    // The low and the high 16 bits, with their signs. A sum on its way may leave 32 bits and come back: unsigned, where that is
    // allowed.
    return halves<I>(
        [](I4 s, I4 x, I4 y) {
            const I4 first = ((I4)((U4)x << 16) >> 16) * ((I4)((U4)y << 16) >> 16), second = (x >> 16) * (y >> 16);
            return (I4)((U4)s + (U4)first + (U4)second);
        },
        sum, a, w);
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

void BitDot::prepare(const Conv &k, const void *in, int row, uint32_t *out, char *spare) {
    const uint32_t *words = padded_words(k, (const uint32_t *)in, row, (uint32_t *)spare);
    __builtin_memcpy(out, words, (size_t)k.row_units * 4);
}

auto places(const Conv &k) {
    return [&k](char *panel, int lane, int tap, int j) -> uint32_t & { return ((uint32_t *)panel)[((size_t)tap * k.units + j) * kBlock + lane]; };
}
void pack_bits(const Conv &k, const uint8_t *weight, void *panels) { move_in(k, weight, panels, 32, places(k)); }
void unpack_bits(const Conv &k, const void *panels, uint8_t *weight) { move_back(k, panels, weight, 32, places(k)); }

}  // namespace

#include "table.inl"

const Kernels *generic_kernels() {
    static constexpr Kernels kernels = table("generic", {4, 32, 4 * kBlock, 16, 0}, conv_rows<BitDot>, false, 1);
    return &kernels;
}

}  // namespace xnorpp
