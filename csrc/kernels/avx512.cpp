// AVX-512 with VPOPCNTDQ and VNNI: Intel since Ice Lake, AMD since Zen 4.
//
// The dot product. 32 channels of a pixel are one word, broadcast to 16 lanes; each lane holds the same word of another
// filter. xor, vpopcntd, add: three operations for 512 multiply-adds, and the sums are 32-bit from the
// start, so nothing is ever flushed. Twelve pixels by 32 filters are 24 sums; with two weight vectors and the broadcast
// they fit the 32 registers.
#include <immintrin.h>

#include "kernels.h"

namespace xnorpp {
namespace {

constexpr int N = 16;
constexpr int kFloatTile = 12;
constexpr bool kWideCounts = true;  // results of the bit kernel are 32-bit
using F = __m512;
using I = __m512i;

inline F load(const float *p) { return _mm512_loadu_ps(p); }
inline void store(float *p, F v) { _mm512_storeu_ps(p, v); }
inline F set1(float x) { return _mm512_set1_ps(x); }
inline F zero() { return _mm512_setzero_ps(); }
inline F add(F a, F b) { return _mm512_add_ps(a, b); }
inline F mul(F a, F b) { return _mm512_mul_ps(a, b); }
inline F div(F a, F b) { return _mm512_div_ps(a, b); }
inline F fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
inline F multiply_add(F a, F b, F c) { return fma(a, b, c); }  // an affine step: rounded once
// max and min give the second operand where one is NaN.
inline F relu(F v) { return _mm512_max_ps(_mm512_setzero_ps(), v); }
inline F clamp(F v, F lo, F hi) { return _mm512_min_ps(hi, _mm512_max_ps(lo, v)); }
inline F prelu(F v, F slope) {
    return _mm512_mask_mul_ps(v, _mm512_cmp_ps_mask(v, _mm512_setzero_ps(), _CMP_NGT_UQ), v, slope);
}
inline F leaky(F v, F slope) { return prelu(v, slope); }
// Either order of operands gives the other one where one is NaN; or-ing both keeps the NaN.
inline F max_nan(F a, F b) { return _mm512_or_ps(_mm512_max_ps(a, b), _mm512_max_ps(b, a)); }
inline F xor_sign(F v, F mask) { return _mm512_xor_ps(v, mask); }
inline unsigned greater(F a, F b) { return (unsigned)_mm512_cmp_ps_mask(a, b, _CMP_GT_OQ); }
// base - 2*count: integers below 2**24, so nothing is rounded.
inline F from_counts32(const float *base, const int32_t *counts) {
    return _mm512_fmadd_ps(_mm512_cvtepi32_ps(_mm512_loadu_si512(counts)), _mm512_set1_ps(-2.0f), _mm512_loadu_ps(base));
}
inline F from_counts16(const float *base, const uint16_t *counts) {
    const __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)counts));
    return _mm512_fmadd_ps(_mm512_cvtepi32_ps(wide), _mm512_set1_ps(-2.0f), _mm512_loadu_ps(base));
}
inline I add_ints(I v, const int32_t *p) { return _mm512_add_epi32(v, _mm512_loadu_si512(p)); }
inline I zero_ints() { return _mm512_setzero_si512(); }
inline F load_sums(const int32_t *p, const int32_t *q) { return _mm512_cvtepi32_ps(add_ints(_mm512_loadu_si512(p), q)); }
inline F to_floats(I v) { return _mm512_cvtepi32_ps(v); }
inline I load_ints(const int32_t *p) { return _mm512_loadu_si512(p); }
inline I max_ints(I a, I b) { return _mm512_max_epi32(a, b); }
inline I xor_ints(I a, I b) { return _mm512_xor_si512(a, b); }
inline void store_ints(int32_t *p, I v) { _mm512_storeu_si512(p, v); }
inline I load_pairs(const int16_t *p) { return _mm512_loadu_si512(p); }
inline I set1_pair(const int16_t *p) {
    int32_t pair;
    __builtin_memcpy(&pair, p, 4);
    return _mm512_set1_epi32(pair);
}
inline I dot_pairs(I sum, I a, I w) { return _mm512_dpwssd_epi32(sum, a, w); }

struct BitDot {
    using Unit = uint32_t;
    using Result = int32_t;
    static constexpr int kTile = 12, kPair = 1, kSlack = 16, kWeightBytes = 4 * kBlock;
    static constexpr bool kBits = true;
    static constexpr int kBlocks = 1;
    static constexpr bool kLimits = true;
    static constexpr long kMostUnits = 1L << 26;

    static void prepare(const Conv &k, const void *in, int row, uint32_t *out, char *spare);

    // Bit c: counts[c] < limits[c], of 32 channels.
    static uint32_t below(const int32_t *counts, const int16_t *limits) {
        const __m512i low = _mm512_cvtepi16_epi32(_mm256_loadu_si256((const __m256i *)limits));
        const __m512i high = _mm512_cvtepi16_epi32(_mm256_loadu_si256((const __m256i *)(limits + 16)));
        const uint32_t first = _mm512_cmplt_epi32_mask(_mm512_loadu_si512(counts), low);
        return first | (uint32_t)_mm512_cmplt_epi32_mask(_mm512_loadu_si512(counts + 16), high) << 16;
    }

    template <int P>
    static void dot_pixels(const uint32_t *const *bases, const Segment *segments, int count, const uint32_t *w,
                           int32_t *result) {
        __m512i sum[P][2];
        for (int i = 0; i < P; i++) sum[i][0] = sum[i][1] = _mm512_setzero_si512();
        for (int s = 0; s < count; s++) {
            const uint32_t *p[P];
            for (int i = 0; i < P; i++) p[i] = bases[i] + segments[s].offset;
            const int length = segments[s].length;
            for (int u = 0; u < length; u++, w += kBlock) {
                const __m512i w0 = _mm512_load_si512(w), w1 = _mm512_load_si512(w + 16);
#pragma GCC unroll 16
                for (int i = 0; i < P; i++) {
                    const __m512i a = _mm512_set1_epi32((int)p[i][u]);
                    sum[i][0] = _mm512_add_epi32(sum[i][0], _mm512_popcnt_epi32(_mm512_xor_si512(a, w0)));
                    sum[i][1] = _mm512_add_epi32(sum[i][1], _mm512_popcnt_epi32(_mm512_xor_si512(a, w1)));
                }
            }
        }
        for (int i = 0; i < P; i++) {
            _mm512_storeu_si512(result + i * kBlock, sum[i][0]);
            _mm512_storeu_si512(result + i * kBlock + 16, sum[i][1]);
        }
    }

    static void dot(const uint32_t *const *bases, int n, const Segment *segments, int count, const void *panel,
                    int32_t *result) {
        const uint32_t *w = (const uint32_t *)panel;
        if (n == kTile) return dot_pixels<kTile>(bases, segments, count, w, result);
        int i = 0;
        for (; i + 4 <= n; i += 4) dot_pixels<4>(bases + i, segments, count, w, result + i * kBlock);
        for (; i < n; i++) dot_pixels<1>(bases + i, segments, count, w, result + i * kBlock);
    }
};

}  // namespace

#include "epilogue.inl"
#include "conv.inl"
#include "real_grouped.inl"
#include "picture_pair.inl"
#include "pool.inl"
#include "pooled.inl"

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

const Kernels *avx512_kernels() {
    static const Kernels kernels = {
        "avx512",
        {4, 32, 4 * kBlock, 16, 0},
        {4, 1, 4 * kBlock, 16, 0},
        {2, 1, 2 * kBlock, 16, 1},
        {2, 1, 2 * kBlock, 64, 1},
        pack_bits,
        pack_float,
        pack_picture,
        pack_picture_pair,
        conv_rows<BitDot>,
        conv_rows<FloatDot>,
        conv_rows<PictureDot>,
        conv_rows<PicturePairDot>,
        pool_row,
        conv_pooled,
        pool_lines,
        global_mean,
        abs_mean,
        finish_pixels,
        pack_grouped,
        conv_grouped,
        true,
    };
    return &kernels;
}

}  // namespace xnorpp
