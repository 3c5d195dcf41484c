// Sixteen lanes of AVX-512: the primitives of KERNELS.md for the files that are compiled with it.

namespace {

constexpr int N = 16;
constexpr int kFloatTile = 12;
constexpr bool kWideCounts = true;  // results of the bit kernel are 32-bit
using F = __m512;
using I = __m512i;

using Real = __m512;  // curves.inl
typedef int Whole __attribute__((vector_size(64)));
constexpr int kReals = 16;
inline Real exact_fma(Real a, Real b, Real c) { return _mm512_fmadd_ps(a, b, c); }
inline Real root(Real a) { return _mm512_sqrt_ps(a); }
inline Real spread(float x) { return _mm512_set1_ps(x); }
// max and min give the second operand where one is NaN.
#define XN_AT_LEAST(x, least) _mm512_max_ps(least, x)
#define XN_AT_MOST(x, most) _mm512_min_ps(most, x)
#define XN_TIMES_POWER(p, n, whole) _mm512_scalef_ps(p, n)

inline F load(const float *p) { return _mm512_loadu_ps(p); }
inline void store(float *p, F v) { _mm512_storeu_ps(p, v); }
inline F set1(float x) { return _mm512_set1_ps(x); }
inline F zero() { return _mm512_setzero_ps(); }
inline F add(F a, F b) { return _mm512_add_ps(a, b); }
inline F mul(F a, F b) { return _mm512_mul_ps(a, b); }
inline F div(F a, F b) { return _mm512_div_ps(a, b); }
inline F fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
inline F multiply_add(F a, F b, F c) { return fma(a, b, c); }  // an affine step: rounded once
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

}  // namespace
