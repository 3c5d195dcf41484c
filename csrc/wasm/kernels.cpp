// WebAssembly with 128-bit vectors; with relaxed SIMD where the compiler is told so (-mrelaxed-simd).
//
// The dot product is that of kernels/avx2.cpp (its tables and its sums are described there) in vectors of 16 bytes: i8x16.swizzle is the
// look-up. The plain instruction promises 0 for indices above 15, which costs an addition on x86; the relaxed one does not, and
// indices here are nibbles. A multiply-add is rounded once in either: relaxed_madd where the machine fuses (`fuses` asks it), else
// in double precision.
#include <wasm_simd128.h>

#include "../kernels/kernels.h"

namespace xnorpp {
namespace {

constexpr int N = 8;
constexpr int kFloatTile = 3;
constexpr bool kWideCounts = false;  // results of the bit kernel are 32-bit
struct F {
    v128_t a, b;
};
struct I {
    v128_t a, b;
};

inline v128_t look_up(v128_t table, v128_t index) {
#if defined(__wasm_relaxed_simd__)
    return wasm_i8x16_relaxed_swizzle(table, index);
#else
    return wasm_i8x16_swizzle(table, index);
#endif
}

inline F load(const float *p) { return {wasm_v128_load(p), wasm_v128_load(p + 4)}; }
inline void store(float *p, F v) { wasm_v128_store(p, v.a), wasm_v128_store(p + 4, v.b); }
inline F set1(float x) { return {wasm_f32x4_splat(x), wasm_f32x4_splat(x)}; }
inline F zero() { return set1(0.0f); }
inline F add(F x, F y) { return {wasm_f32x4_add(x.a, y.a), wasm_f32x4_add(x.b, y.b)}; }
inline F mul(F x, F y) { return {wasm_f32x4_mul(x.a, y.a), wasm_f32x4_mul(x.b, y.b)}; }
inline F div(F x, F y) { return {wasm_f32x4_div(x.a, y.a), wasm_f32x4_div(x.b, y.b)}; }

#if defined(__wasm_relaxed_simd__)
inline F fma(F x, F y, F z) { return {wasm_f32x4_relaxed_madd(x.a, y.a, z.a), wasm_f32x4_relaxed_madd(x.b, y.b, z.b)}; }
inline F multiply_add(F x, F y, F z) { return fma(x, y, z); }
#else
inline F fma(F x, F y, F z) { return add(mul(x, y), z); }

// Rounded to odd, so that the sum never looks like the middle of two floats when it is not (as in kernels/generic.cpp).
__attribute__((noinline)) v128_t exact_halves(v128_t product, v128_t summand) {
    alignas(16) double p[2], c[2], odd[2];
    wasm_v128_store(p, product), wasm_v128_store(c, summand);
    for (int i = 0; i < 2; i++) {
        const double total = p[i] + c[i], back = total - p[i], lost = (p[i] - (total - back)) + (c[i] - back);
        int64_t bits;
        __builtin_memcpy(&bits, &total, sizeof bits);
        const int64_t toward = (lost > 0) - (lost < 0), outward = bits < 0 ? -toward : toward;
        bits += bits & 1 ? 0 : outward;
        __builtin_memcpy(&odd[i], &bits, sizeof bits);
    }
    return wasm_f32x4_demote_f64x2_zero(wasm_v128_load(odd));
}

// The product is exact in double. The sum is rounded twice, to double and to float, which is the same as once unless the double
// lies in the middle of two floats, or where floats have fewer bits: then it is done again with care. In every line: not inline.
__attribute__((noinline)) v128_t multiply_add4(v128_t x, v128_t y, v128_t z) {
    const auto high = [](v128_t v) { return wasm_f64x2_promote_low_f32x4(wasm_i64x2_shuffle(v, v, 1, 1)); };
    const v128_t p0 = wasm_f64x2_mul(wasm_f64x2_promote_low_f32x4(x), wasm_f64x2_promote_low_f32x4(y)), p1 = wasm_f64x2_mul(high(x), high(y));
    const v128_t c0 = wasm_f64x2_promote_low_f32x4(z), c1 = high(z);
    const v128_t t0 = wasm_f64x2_add(p0, c0), t1 = wasm_f64x2_add(p1, c1);
    const v128_t tail = wasm_i64x2_const_splat(0x1fffffff), middle = wasm_i64x2_const_splat(0x10000000);
    const v128_t least = wasm_f64x2_const_splat(1.1754943508222875e-38);
    const v128_t doubt0 = wasm_v128_or(wasm_i64x2_eq(wasm_v128_and(t0, tail), middle), wasm_f64x2_lt(wasm_f64x2_abs(t0), least));
    const v128_t doubt1 = wasm_v128_or(wasm_i64x2_eq(wasm_v128_and(t1, tail), middle), wasm_f64x2_lt(wasm_f64x2_abs(t1), least));
    v128_t low = wasm_f32x4_demote_f64x2_zero(t0), up = wasm_f32x4_demote_f64x2_zero(t1);
    if (__builtin_expect(wasm_v128_any_true(wasm_v128_or(doubt0, doubt1)), 0)) low = exact_halves(p0, c0), up = exact_halves(p1, c1);
    return wasm_i64x2_shuffle(low, up, 0, 2);
}
inline F multiply_add(F x, F y, F z) { return {multiply_add4(x.a, y.a, z.a), multiply_add4(x.b, y.b, z.b)}; }
#endif

// max and min give NaN where one operand is NaN.
inline F max_nan(F x, F y) { return {wasm_f32x4_max(x.a, y.a), wasm_f32x4_max(x.b, y.b)}; }
// pmax(a, b) is b where a < b, and a otherwise: a NaN in a stays.
inline F relu(F v) { return {wasm_f32x4_pmax(v.a, wasm_f32x4_const_splat(0)), wasm_f32x4_pmax(v.b, wasm_f32x4_const_splat(0))}; }
inline F clamp(F v, F lo, F hi) {
    return {wasm_f32x4_pmin(wasm_f32x4_pmax(v.a, lo.a), hi.a), wasm_f32x4_pmin(wasm_f32x4_pmax(v.b, lo.b), hi.b)};
}
inline v128_t prelu4(v128_t v, v128_t slope) {
    return wasm_v128_bitselect(v, wasm_f32x4_mul(v, slope), wasm_f32x4_gt(v, wasm_f32x4_const_splat(0)));
}
inline F prelu(F v, F slope) { return {prelu4(v.a, slope.a), prelu4(v.b, slope.b)}; }
inline F leaky(F v, F slope) { return {wasm_f32x4_pmax(v.a, wasm_f32x4_mul(v.a, slope.a)), wasm_f32x4_pmax(v.b, wasm_f32x4_mul(v.b, slope.b))}; }
inline F xor_sign(F v, F mask) { return {wasm_v128_xor(v.a, mask.a), wasm_v128_xor(v.b, mask.b)}; }
inline unsigned greater(F x, F y) {
    return (unsigned)wasm_i32x4_bitmask(wasm_f32x4_gt(x.a, y.a)) | (unsigned)wasm_i32x4_bitmask(wasm_f32x4_gt(x.b, y.b)) << 4;
}
// base - 2*count: integers below 2**24, so nothing is rounded.
inline v128_t minus_twice(const float *base, v128_t counts) {
    return wasm_f32x4_sub(wasm_v128_load(base), wasm_f32x4_convert_i32x4(wasm_i32x4_shl(counts, 1)));
}
inline F from_counts16(const float *base, const uint16_t *counts) {
    return {minus_twice(base, wasm_u32x4_load16x4(counts)), minus_twice(base + 4, wasm_u32x4_load16x4(counts + 4))};
}
inline F from_counts32(const float *base, const int32_t *counts) {
    return {minus_twice(base, wasm_v128_load(counts)), minus_twice(base + 4, wasm_v128_load(counts + 4))};
}
inline I add_ints(I v, const int32_t *p) { return {wasm_i32x4_add(v.a, wasm_v128_load(p)), wasm_i32x4_add(v.b, wasm_v128_load(p + 4))}; }
inline I zero_ints() { return {wasm_i32x4_const_splat(0), wasm_i32x4_const_splat(0)}; }
inline F to_floats(I v) { return {wasm_f32x4_convert_i32x4(v.a), wasm_f32x4_convert_i32x4(v.b)}; }
inline I load_ints(const int32_t *p) { return {wasm_v128_load(p), wasm_v128_load(p + 4)}; }
inline F load_sums(const int32_t *p, const int32_t *q) { return to_floats(add_ints(load_ints(p), q)); }
inline I max_ints(I a, I b) { return {wasm_i32x4_max(a.a, b.a), wasm_i32x4_max(a.b, b.b)}; }
inline I xor_ints(I a, I b) { return {wasm_v128_xor(a.a, b.a), wasm_v128_xor(a.b, b.b)}; }
inline void store_ints(int32_t *p, I v) { wasm_v128_store(p, v.a), wasm_v128_store(p + 4, v.b); }
inline I load_pairs(const int16_t *p) { return {wasm_v128_load(p), wasm_v128_load(p + 8)}; }
inline I set1_pair(const int16_t *p) {
    const v128_t pair = wasm_v128_load32_splat(p);
    return {pair, pair};
}
inline I dot_pairs(I sum, I a, I w) {
    return {wasm_i32x4_add(sum.a, wasm_i32x4_dot_i16x8(a.a, w.a)), wasm_i32x4_add(sum.b, wasm_i32x4_dot_i16x8(a.b, w.b))};
}

typedef float Real __attribute__((vector_size(16)));  // curves.inl
typedef int Whole __attribute__((vector_size(16)));
constexpr int kReals = 4;
inline Real exact_fma(Real a, Real b, Real c) {
#if defined(__wasm_relaxed_simd__)
    return (Real)wasm_f32x4_relaxed_madd((v128_t)a, (v128_t)b, (v128_t)c);
#else
    return (Real)multiply_add4((v128_t)a, (v128_t)b, (v128_t)c);
#endif
}
inline Real root(Real a) { return (Real)wasm_f32x4_sqrt((v128_t)a); }
inline Real spread(float x) { return (Real)wasm_f32x4_splat(x); }

struct Tables {
    alignas(64) uint8_t rows[256 * 16];
    constexpr Tables() : rows() {
        for (int pair = 0; pair < 256; pair++)
            for (int w = 0; w < 16; w++) {
                int low = 0, high = 0;
                for (int b = 0; b < 4; b++) low += ((pair ^ w) >> b) & 1, high += (((pair >> 4) ^ w) >> b) & 1;
                rows[pair * 16 + w] = (uint8_t)(low | high << 4);
            }
    }
};
constexpr Tables kTables{};

inline v128_t table(uint16_t offset) { return wasm_v128_load(kTables.rows + offset); }

// Sixteen lanes of a panel: of each pixel the channels 0..7 (even bytes) and 16..23 (odd bytes) from `counts` on.
inline void flush(v128_t a, v128_t m, uint16_t *counts, bool first) {
    const v128_t low = wasm_i16x8_const_splat(255);
    const v128_t h1 = wasm_u16x8_shr(m, 8);
    const v128_t t = wasm_i16x8_sub(a, wasm_i16x8_shl(h1, 12));
    const v128_t l1 = wasm_u16x8_shr(t, 8);
    const v128_t h0 = wasm_v128_and(wasm_i16x8_sub(m, wasm_i16x8_shl(l1, 4)), low);
    const v128_t l0 = wasm_v128_and(wasm_i16x8_sub(t, wasm_i16x8_shl(h0, 4)), low);
    const v128_t parts[4] = {l0, l1, h0, h1};  // first pixel, then the second
    for (int i = 0; i < 4; i++) {
        uint16_t *to = counts + i * 16;
        wasm_v128_store(to, first ? parts[i] : wasm_i16x8_add(wasm_v128_load(to), parts[i]));
    }
}

struct BitDot {
    using Unit = uint16_t;  // (a1 | a2<<4) * 16: the table's offset
    using Result = uint16_t;
    static constexpr int kTile = 8, kPair = 2, kSlack = 16, kWeightBytes = kBlock;
    static constexpr bool kBits = true;
    static constexpr int kBlocks = 1;
    static constexpr bool kLimits = true;
    static constexpr long kMostUnits = 16383;  // 65535 bits a count
    static constexpr int kLookups = 63;        // between two flushes

    static void prepare(const Conv &k, const void *in, int row, uint16_t *out, char *spare);

    // Bit c: counts[c] < limits[c], of 32 channels; both below 2**15.
    static uint32_t below(const uint16_t *counts, const int16_t *limits) {
        uint32_t bits = 0;
        for (int half = 0; half < 2; half++) {
            const v128_t less = wasm_i16x8_lt(wasm_v128_load(counts + half * 16), wasm_v128_load(limits + half * 16));
            const v128_t more = wasm_i16x8_lt(wasm_v128_load(counts + half * 16 + 8), wasm_v128_load(limits + half * 16 + 8));
            bits |= (uint32_t)wasm_i8x16_bitmask(wasm_i8x16_narrow_i16x8(less, more)) << half * 16;
        }
        return bits;
    }

    // The units of two pixels, each with another partner until now, as a pair.
    static void join(const uint16_t *first, const uint16_t *second, size_t n, uint16_t *out) {
        for (size_t i = 0; i < n; i++) out[i] = (uint16_t)((first[i] & 0xf0) | (second[i] & 0xf0) << 4);
    }

    // P pairs of pixels by 32 filters over `n` units.
    template <int P>
    static void dot_piece(const uint16_t *const *p, const uint8_t *w, int n, uint16_t *result, bool first) {
        v128_t a[P][2], m[P][2];
        for (int i = 0; i < P; i++) a[i][0] = a[i][1] = m[i][0] = m[i][1] = wasm_i8x16_const_splat(0);
        int k = 0;
        for (; k + 3 <= n; k += 3) {
            const uint8_t *v = w + k * kBlock;
            v128_t x[P][2];
#pragma GCC unroll 3
            for (int u = 0; u < 3; u++) {
                const v128_t v0 = wasm_v128_load(v + u * kBlock), v1 = wasm_v128_load(v + u * kBlock + 16);
#pragma GCC unroll 4
                for (int i = 0; i < P; i++) {
                    const v128_t t = table(p[i][k + u]);
                    const v128_t c0 = look_up(t, v0), c1 = look_up(t, v1);
                    x[i][0] = u ? wasm_i8x16_add(x[i][0], c0) : c0;
                    x[i][1] = u ? wasm_i8x16_add(x[i][1], c1) : c1;
                }
            }
#pragma GCC unroll 4
            for (int i = 0; i < P; i++)
                for (int h = 0; h < 2; h++) {
                    a[i][h] = wasm_i8x16_add(a[i][h], x[i][h]);
                    m[i][h] = wasm_i8x16_add(m[i][h], wasm_u16x8_shr(x[i][h], 4));
                }
        }
        for (; k < n; k++)
            for (int i = 0; i < P; i++)
                for (int h = 0; h < 2; h++) {
                    const v128_t c = look_up(table(p[i][k]), wasm_v128_load(w + k * kBlock + h * 16));
                    a[i][h] = wasm_i8x16_add(a[i][h], c);
                    m[i][h] = wasm_i8x16_add(m[i][h], wasm_u16x8_shr(c, 4));
                }
        for (int i = 0; i < P; i++)
            for (int h = 0; h < 2; h++) flush(a[i][h], m[i][h], result + i * 2 * kBlock + h * 8, first);
    }

    static void dot(const uint16_t *const *bases, int pairs, const Segment *segments, int count, const void *panel, uint16_t *result) {
        const uint8_t *w = (const uint8_t *)panel;
        bool first = true;
        for (int s = 0; s < count; s++) {
            const int length = segments[s].length, pieces = (length + kLookups - 1) / kLookups;
            const int piece = pieces == 1 ? length : ((length + pieces - 1) / pieces + 2) / 3 * 3;
            for (int done = 0; done < length; done += piece) {
                const int now = length - done < piece ? length - done : piece;
                const uint16_t *p[kTile];
                for (int i = 0; i < kTile; i++) p[i] = bases[i] + segments[s].offset + done;
                int i = 0;
                for (; i + 2 <= pairs; i += 2) dot_piece<2>(p + i, w, now, result + i * 2 * kBlock, first);
                if (i < pairs) dot_piece<1>(p + i, w, now, result + i * 2 * kBlock, first);
                w += now * kBlock;
                first = false;
            }
        }
    }
};

}  // namespace

#include "../kernels/curves.inl"
#include "../kernels/norm.inl"
#include "../kernels/product.inl"
#include "../kernels/epilogue.inl"
#include "../kernels/conv.inl"
#include "../kernels/real/pointwise.inl"
#include "../kernels/real/grouped.inl"
#include "../kernels/stem/whole.inl"
#include "../kernels/stem/image_pair.inl"
#include "../kernels/stem/image_quad.inl"
#include "../kernels/stem/image_eight.inl"
#include "../kernels/pool.inl"
#include "../kernels/transpose.inl"
#include "../kernels/stem/pooled.inl"

namespace {

// Sixteen units at a time; what is written behind a run's last unit is overwritten by the next one.
void BitDot::prepare(const Conv &k, const void *in, int row, uint16_t *out, char *spare) {
    const uint32_t *words = padded_words(k, (const uint32_t *)in, row, (uint32_t *)spare);
    const size_t partner = (size_t)k.sw * k.groups * k.words;
    // Whole words: a row is one run of units. Otherwise each pixel's last word has units that do not count.
    const bool whole = k.units == 8 * k.words;
    const int runs = whole ? 1 : k.cols * k.groups, units = whole ? k.cols * k.groups * k.units : k.units;
    const v128_t low = wasm_i16x8_const_splat(15);
    for (int x = 0; x < runs; x++, words += k.words, out += k.units)
        for (int u = 0; u < units; u += 16) {
            // Bytes as words 0xUL (upper and lower nibble): L1 and L2 go to bits 4.. and 8.., U1 and U2 likewise.
            const v128_t a = wasm_u16x8_load8x8(words + u / 8), b = wasm_u16x8_load8x8(words + partner + u / 8);
            const v128_t even = wasm_v128_or(wasm_i16x8_shl(wasm_v128_and(a, low), 4), wasm_i16x8_shl(wasm_v128_and(b, low), 8));
            const v128_t odd = wasm_v128_or(wasm_v128_andnot(a, low), wasm_i16x8_shl(wasm_v128_andnot(b, low), 4));
            wasm_v128_store(out + u, wasm_i16x8_shuffle(even, odd, 0, 8, 1, 9, 2, 10, 3, 11));
            wasm_v128_store(out + u + 8, wasm_i16x8_shuffle(even, odd, 4, 12, 5, 13, 6, 14, 7, 15));
        }
}

// Lane 2i of a panel is channel i and lane 2i + 1 channel 16 + i.
auto places(const Conv &k) {
    return [&k](char *panel, int lane, int tap, int j) -> uint8_t & {
        return ((uint8_t *)panel)[((size_t)tap * k.units + j) * kBlock + (lane < 16 ? 2 * lane : 2 * (lane - 16) + 1)];
    };
}
void pack_bits(const Conv &k, const uint8_t *weight, void *panels) { move_in(k, weight, panels, 4, places(k)); }
void unpack_bits(const Conv &k, const void *panels, uint8_t *weight) { move_back(k, panels, weight, 4, places(k)); }

}  // namespace

#include "../kernels/table.inl"

bool wasm_fuses() {
#if defined(__wasm_relaxed_simd__)
    // 1 + 2^-12 squared is 1 + 2^-11 + 2^-24, of which a product that is rounded by itself loses the last part.
    volatile float one = 1.0f + 0x1p-12f, rest = -(1.0f + 0x1p-11f);
    const v128_t x = wasm_f32x4_splat(one);
    return wasm_f32x4_extract_lane(wasm_f32x4_relaxed_madd(x, x, wasm_f32x4_splat(rest)), 0) == 0x1p-24f;
#else
    return true;
#endif
}

const Kernels *wasm_kernels() {
#if defined(__wasm_relaxed_simd__)
    constexpr const char *kName = "wasm-relaxed";
#else
    constexpr const char *kName = "wasm-simd";
#endif
    static constexpr Kernels kernels = table(kName, {2, 4, kBlock, 16, 0}, conv_rows<BitDot>, true, BitDot::kBlocks);
    return &kernels;
}

}  // namespace xnorpp
