// AVX2 (with FMA): x86 since 2013, the path that matters most.
//
// The dot product. Counting bits with vpshufb costs about eight operations for 256 bits. Here it is turned round: a
// *pair of activation nibbles* (four channels of two neighbouring output pixels, a1 and a2) picks one of 256 tables,
//     table[a1 | a2<<4][w] = popcount(a1 ^ w) | popcount(a2 ^ w) << 4,
// and the weight nibbles of 32 output channels are the shuffle's indices: one broadcast load and one vpshufb count
// the differing bits of 4 channels, 2 pixels, 32 filters. Tables take 4 KB and stay in L1.
//
// Sums. Three look-ups are added before a nibble can overflow (3*4 = 12): s = l + 16*h in every byte, l and h the
// counts of the first and the second pixel. Two byte sums are kept:
//     A += s             (bytes, modulo 256)
//     M += s >> 4        (the shift is of 16-bit words and not masked)
// In a 16-bit word with bytes (0, 1) the shift gives byte 1: h1, and byte 0: h0 + 16*l1 (modulo 256). With H and L the
// true sums (at most 255, so after at most 63 look-ups the sums are flushed):
//     M1 = H1,   A1 = L1 + 16*H1,   M0 = H0 + 16*L1,   A0 = L0 + 16*H0     (each modulo 256),
// a triangular system: H1, then L1, H0, L0 follow by subtraction modulo 256. So three look-ups cost 3 shuffles, 4 adds
// and 1 shift: 8 operations for 768 multiply-adds. Lane 2i of a panel is channel i and lane 2i+1 channel 16+i, so the even
// bytes of a flush are channels 0..15 as words in order, the odd bytes channels 16..31.
#include <immintrin.h>

#include "kernels.h"

namespace xnorpp {
namespace {

constexpr int N = 8;
constexpr int kFloatTile = 6;
constexpr bool kWideCounts = false;  // results of the bit kernel are 32-bit
using F = __m256;
using I = __m256i;

using Real = __m256;  // curves.inl
typedef int Whole __attribute__((vector_size(32)));
constexpr int kReals = 8;
inline Real exact_fma(Real a, Real b, Real c) { return _mm256_fmadd_ps(a, b, c); }
inline Real root(Real a) { return _mm256_sqrt_ps(a); }
inline Real spread(float x) { return _mm256_set1_ps(x); }
// max and min give the second operand where one is NaN.
#define XN_AT_LEAST(x, least) _mm256_max_ps(least, x)
#define XN_AT_MOST(x, most) _mm256_min_ps(most, x)

inline F load(const float *p) { return _mm256_loadu_ps(p); }
inline void store(float *p, F v) { _mm256_storeu_ps(p, v); }
inline F set1(float x) { return _mm256_set1_ps(x); }
inline F zero() { return _mm256_setzero_ps(); }
inline F add(F a, F b) { return _mm256_add_ps(a, b); }
inline F mul(F a, F b) { return _mm256_mul_ps(a, b); }
inline F div(F a, F b) { return _mm256_div_ps(a, b); }
inline F fma(F a, F b, F c) { return _mm256_fmadd_ps(a, b, c); }
inline F multiply_add(F a, F b, F c) { return fma(a, b, c); }  // an affine step: rounded once
inline F relu(F v) { return _mm256_max_ps(_mm256_setzero_ps(), v); }
inline F clamp(F v, F lo, F hi) { return _mm256_min_ps(hi, _mm256_max_ps(lo, v)); }
inline F prelu(F v, F slope) {
    return _mm256_blendv_ps(_mm256_mul_ps(v, slope), v, _mm256_cmp_ps(v, _mm256_setzero_ps(), _CMP_GT_OQ));
}
inline F leaky(F v, F slope) { return _mm256_max_ps(_mm256_mul_ps(v, slope), v); }
// Either order of operands gives the other one where one is NaN; or-ing both keeps the NaN.
inline F max_nan(F a, F b) { return _mm256_or_ps(_mm256_max_ps(a, b), _mm256_max_ps(b, a)); }
inline F xor_sign(F v, F mask) { return _mm256_xor_ps(v, mask); }
inline unsigned greater(F a, F b) { return (unsigned)_mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_GT_OQ)); }
// base - 2*count: integers below 2**24, so nothing is rounded.
inline F from_counts16(const float *base, const uint16_t *counts) {
    const __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)counts));
    return _mm256_fmadd_ps(_mm256_cvtepi32_ps(wide), _mm256_set1_ps(-2.0f), _mm256_loadu_ps(base));
}
inline F from_counts32(const float *base, const int32_t *counts) {
    const __m256i wide = _mm256_loadu_si256((const __m256i *)counts);
    return _mm256_fmadd_ps(_mm256_cvtepi32_ps(wide), _mm256_set1_ps(-2.0f), _mm256_loadu_ps(base));
}
inline I add_ints(I v, const int32_t *p) { return _mm256_add_epi32(v, _mm256_loadu_si256((const __m256i *)p)); }
inline I zero_ints() { return _mm256_setzero_si256(); }
inline F load_sums(const int32_t *p, const int32_t *q) {
    return _mm256_cvtepi32_ps(add_ints(_mm256_loadu_si256((const __m256i *)p), q));
}
inline F to_floats(I v) { return _mm256_cvtepi32_ps(v); }
inline I load_ints(const int32_t *p) { return _mm256_loadu_si256((const __m256i *)p); }
inline I max_ints(I a, I b) { return _mm256_max_epi32(a, b); }
inline I xor_ints(I a, I b) { return _mm256_xor_si256(a, b); }
inline void store_ints(int32_t *p, I v) { _mm256_storeu_si256((__m256i *)p, v); }
inline I load_pairs(const int16_t *p) { return _mm256_loadu_si256((const __m256i *)p); }
inline I set1_pair(const int16_t *p) {
    int32_t pair;
    __builtin_memcpy(&pair, p, 4);
    return _mm256_set1_epi32(pair);
}
inline I dot_pairs(I sum, I a, I w) {
    sum = _mm256_add_epi32(sum, _mm256_madd_epi16(a, w));
    __asm__ volatile("" : "+x"(sum) : : "memory");  // or GCC regroups an unrolled loop and runs out of registers
    return sum;
}

// Two pairs of an image, 24 bytes apart, by two vectors of filters. Four products, then their four sums: Zen 3 and 4 hand out
// additions to all pipes alike, also to the two that multiply, and lose the least of these in this order (4.8 cycles for eight
// products where 4 are possible, 5.3 for products and sums in turn). One piece, so that the compiler neither regroups the sums nor
// brings weights in early, and runs out of registers.
template <int kAt>
__attribute__((always_inline)) inline void dot_two(I (&first)[2], I (&second)[2], const int16_t *p, I w0, I w1) {
    I a, b, t, u;
    __asm__("vpbroadcastd %c[at](%[p]), %[a]\n\t"
            "vpbroadcastd %c[next](%[p]), %[b]\n\t"
            "vpmaddwd %[a], %[w0], %[t]\n\t"
            "vpmaddwd %[a], %[w1], %[a]\n\t"
            "vpmaddwd %[b], %[w0], %[u]\n\t"
            "vpmaddwd %[b], %[w1], %[b]\n\t"
            "vpaddd %[t], %[s0], %[s0]\n\t"
            "vpaddd %[a], %[s1], %[s1]\n\t"
            "vpaddd %[u], %[s2], %[s2]\n\t"
            "vpaddd %[b], %[s3], %[s3]"
            : [s0] "+x"(first[0]), [s1] "+x"(first[1]), [s2] "+x"(second[0]), [s3] "+x"(second[1]), [a] "=&x"(a), [b] "=&x"(b),
              [t] "=&x"(t), [u] "=&x"(u)
            : [p] "r"(p), [at] "i"(2 * kAt), [next] "i"(2 * kAt + 24), [w0] "x"(w0), [w1] "x"(w1), "m"(*(const int16_t(*)[kAt + 14])p));
}

// See stem/image_pair.inl.
template <int kAt, int kWeights>
__attribute__((always_inline)) inline void dot_beside(I (&sum)[4][2], const int16_t *p, const int16_t *w) {
    I w0, w1;
    __asm__("vmovdqu %c[at](%[w]), %[w0]\n\t"
            "vmovdqu %c[next](%[w]), %[w1]"
            : [w0] "=&x"(w0), [w1] "=x"(w1)
            : [w] "r"(w), [at] "i"(2 * kWeights), [next] "i"(2 * kWeights + 32), "m"(*(const int16_t(*)[kWeights + 32])w));
    dot_two<kAt>(sum[0], sum[1], p, w0, w1);
    dot_two<kAt + 24>(sum[2], sum[3], p, w0, w1);
}

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

// In a register, here and now: left alone, GCC loads a weight again for each use, regroups the sums and runs out of registers.
inline void keep(__m256i &v) { __asm__ volatile("" : "+x"(v)); }

// A sum that stays in its register.
inline void add_to(__m256i &sum, __m256i v) { __asm__("vpaddb %1, %0, %0" : "+x"(sum) : "x"(v)); }

inline __m256i table(uint16_t offset) {
    return _mm256_broadcastsi128_si256(_mm_load_si128((const __m128i *)(kTables.rows + offset)));
}

inline void flush(__m256i a, __m256i m, uint16_t *counts, bool first) {
    const __m256i low = _mm256_set1_epi16(255);
    const __m256i h1 = _mm256_srli_epi16(m, 8);
    const __m256i t = _mm256_sub_epi16(a, _mm256_slli_epi16(h1, 12));
    const __m256i l1 = _mm256_srli_epi16(t, 8);
    const __m256i h0 = _mm256_and_si256(_mm256_sub_epi16(m, _mm256_slli_epi16(l1, 4)), low);
    const __m256i l0 = _mm256_and_si256(_mm256_sub_epi16(t, _mm256_slli_epi16(h0, 4)), low);
    __m256i *to = (__m256i *)counts;  // first pixel: 32 channels, then the second
    if (first) {
        to[0] = l0, to[1] = l1, to[2] = h0, to[3] = h1;
    } else {
        to[0] = _mm256_add_epi16(to[0], l0), to[1] = _mm256_add_epi16(to[1], l1);
        to[2] = _mm256_add_epi16(to[2], h0), to[3] = _mm256_add_epi16(to[3], h1);
    }
}

struct BitDot {
    using Unit = uint16_t;  // (a1 | a2<<4) * 16: the table's offset
    using Result = uint16_t;
    static constexpr int kTile = 14, kPair = 2, kSlack = 16, kWeightBytes = kBlock;
    static constexpr bool kBits = true;
    static constexpr int kBlocks = 2;
    static constexpr bool kLimits = true;
    static constexpr long kMostUnits = 16383;  // 65535 bits a count
    static constexpr int kLookups = 63;        // between two flushes

    static void prepare(const Conv &k, const void *in, int row, uint16_t *out, char *spare);

    // Bit c: counts[c] < limits[c], of 32 channels; both below 2**15.
    static uint32_t below(const uint16_t *counts, const int16_t *limits) {
        const __m256i *n = (const __m256i *)counts, *l = (const __m256i *)limits;
        const __m256i low = _mm256_cmpgt_epi16(_mm256_loadu_si256(l), _mm256_load_si256(n));
        const __m256i high = _mm256_cmpgt_epi16(_mm256_loadu_si256(l + 1), _mm256_load_si256(n + 1));
        return (uint32_t)_mm256_movemask_epi8(_mm256_permute4x64_epi64(_mm256_packs_epi16(low, high), 0xd8));
    }

    // The units of two pixels, each with another partner until now, as a pair.
    static void join(const uint16_t *first, const uint16_t *second, size_t n, uint16_t *out) {
        for (size_t i = 0; i < n; i++) out[i] = (uint16_t)((first[i] & 0xf0) | (second[i] & 0xf0) << 4);
    }

    // P pairs of pixels by B blocks of filters over `n` units. A table serves B shuffles and a weight vector P of them; with
    // P*B = 4 the sums of three look-ups, A, M, two weight vectors, a table and one look-up are the sixteen registers.
    template <int P, int B>
    __attribute__((always_inline)) static inline void look_up(const uint16_t *const *p, const uint8_t *const *w, int at, int units,
                                                              __m256i (&a)[P][B], __m256i (&m)[P][B]) {
        __m256i x[P][B];
#pragma GCC unroll 3
        for (int k = 0; k < units; k++) {
            __m256i v[B];
#pragma GCC unroll 2
            for (int b = 0; b < B; b++) {
                v[b] = _mm256_load_si256((const __m256i *)(w[b] + (at + k) * kBlock));
                keep(v[b]);
            }
#pragma GCC unroll 4
            for (int i = 0; i < P; i++) {
                const __m256i t = table(p[i][at + k]);
#pragma GCC unroll 2
                for (int b = 0; b < B; b++) {
                    const __m256i count = _mm256_shuffle_epi8(t, v[b]);
                    x[i][b] = k ? _mm256_add_epi8(x[i][b], count) : count;
                    keep(x[i][b]);
                }
            }
        }
#pragma GCC unroll 4
        for (int i = 0; i < P; i++)
#pragma GCC unroll 2
            for (int b = 0; b < B; b++) {
                a[i][b] = _mm256_add_epi8(a[i][b], x[i][b]);
                m[i][b] = _mm256_add_epi8(m[i][b], _mm256_srli_epi16(x[i][b], 4));
            }
    }

    template <int P, int B>
    static void dot_piece(const uint16_t *const *p, const uint8_t *const *w, int n, uint16_t *result, bool first) {
        __m256i a[P][B], m[P][B];
        for (int i = 0; i < P; i++)
            for (int b = 0; b < B; b++) a[i][b] = m[i][b] = _mm256_setzero_si256();
        int k = 0;
        for (; k + 3 <= n; k += 3) look_up<P, B>(p, w, k, 3, a, m);
        for (; k < n; k++) look_up<P, B>(p, w, k, 1, a, m);
#pragma GCC unroll 4
        for (int i = 0; i < P; i++)
#pragma GCC unroll 2
            for (int b = 0; b < B; b++) flush(a[i][b], m[i][b], result + (b * kTile + i) * 2 * kBlock, first);
    }

    // Three columns of a kernel row at a time, the same channels of each: the three look-ups of a sum. `across` units lie
    // between neighbouring columns. Where the second pair is the first one's neighbour (kNeighbours), its first column is the
    // other's third, and one table serves both.
    template <int P, int B, bool kNeighbours>
    __attribute__((always_inline)) static inline void look_across(const uint16_t *const (&p)[P][3], const uint8_t *const *w, int at,
                                                                  __m256i (&a)[P][B], __m256i (&m)[P][B]) {
        __m256i x[P][B], v[B];
        const auto weights = [&](int column) __attribute__((always_inline)) {
#pragma GCC unroll 2
            for (int b = 0; b < B; b++) {
                v[b] = _mm256_load_si256((const __m256i *)(w[b] + (at * 3 + column) * kBlock));
                keep(v[b]);
            }
        };
        const auto count = [&](int i, __m256i t, bool first) __attribute__((always_inline)) {
#pragma GCC unroll 2
            for (int b = 0; b < B; b++) {
                const __m256i counted = _mm256_shuffle_epi8(t, v[b]);
                x[i][b] = first ? counted : _mm256_add_epi8(x[i][b], counted);
                keep(x[i][b]);
            }
        };
        weights(0);
        count(0, table(p[0][0][at]), true);
        if constexpr (kNeighbours) {
            __m256i shared = table(p[0][2][at]);
            keep(shared);
            count(1, shared, true);
            weights(2);
            count(0, shared, false);
            count(1, table(p[1][2][at]), false);
        } else {
#pragma GCC unroll 4
            for (int i = 1; i < P; i++) count(i, table(p[i][0][at]), true);
            weights(2);
#pragma GCC unroll 4
            for (int i = 0; i < P; i++) count(i, table(p[i][2][at]), false);
        }
        weights(1);
#pragma GCC unroll 4
        for (int i = 0; i < P; i++) count(i, table(p[i][1][at]), false);
#pragma GCC unroll 4
        for (int i = 0; i < P; i++)
#pragma GCC unroll 2
            for (int b = 0; b < B; b++) {
                add_to(a[i][b], x[i][b]);
                add_to(m[i][b], _mm256_srli_epi16(x[i][b], 4));
            }
    }

    template <int P, int B, bool kNeighbours>
    static void dot_across(const uint16_t *const *bases, long across, const uint8_t *const *w, int n, uint16_t *result, bool first) {
        __m256i a[P][B], m[P][B];
        const uint16_t *p[P][3];
        for (int i = 0; i < P; i++) {
            for (int j = 0; j < 3; j++) p[i][j] = bases[i] + j * across;
            for (int b = 0; b < B; b++) a[i][b] = m[i][b] = _mm256_setzero_si256();
        }
        for (int k = 0; k < n; k++) look_across<P, B, kNeighbours>(p, w, k, a, m);
#pragma GCC unroll 4
        for (int i = 0; i < P; i++)
#pragma GCC unroll 2
            for (int b = 0; b < B; b++) flush(a[i][b], m[i][b], result + (b * kTile + i) * 2 * kBlock, first);
    }

    // A 3-wide kernel's panels lie in the order [row][unit][column] instead of [row][column][unit].
    static long across(const Conv &k) {
        return k.kw == 3 && k.dw == 1 && k.groups == 1 && k.segment_count == k.kh ? k.units : 0;
    }

    template <int B>
    static void dot_rows(const uint16_t *const *bases, int pairs, const Segment *segments, int count, long across,
                         const uint8_t *const *panels, uint16_t *result, Ahead ahead) {
        const uint8_t *w[B];
        for (int b = 0; b < B; b++) w[b] = panels[b];
        bool first = true;
        const int pieces = ((int)across + kLookups / 3 - 1) / (kLookups / 3), piece = ((int)across + pieces - 1) / pieces;
        for (int s = 0; s < count; s++)
            for (int done = 0; done < across; done += piece, first = false) {
                const int now = (int)across - done < piece ? (int)across - done : piece;
                if (ahead.at) {
                    const char *end = ahead.at + B * now * 3 * kBlock / ahead.share;
                    for (; ahead.at < end; ahead.at += kLine) _mm_prefetch(ahead.at, _MM_HINT_T1);
                }
                const uint16_t *p[kTile];
                for (int i = 0; i < kTile; i++) p[i] = bases[i] + segments[s].offset + done;
                int i = 0;
                for (; i + 2 <= pairs; i += 2) {
                    if (p[i + 1] - p[i] == 2 * across) dot_across<2, B, true>(p + i, across, w, now, result + i * 2 * kBlock, first);
                    else dot_across<2, B, false>(p + i, across, w, now, result + i * 2 * kBlock, first);
                }
                if (i < pairs) dot_across<1, B, false>(p + i, across, w, now, result + i * 2 * kBlock, first);
                for (int b = 0; b < B; b++) w[b] += now * 3 * kBlock;
            }
    }

    // All of a tile's pairs over one piece of the window: the piece's weights are read from the first-level cache by all
    // pairs but the first.
    template <int B>
    static void dot_blocks(const uint16_t *const *bases, int pairs, const Segment *segments, int count, const uint8_t *const *panels,
                           uint16_t *result, Ahead ahead) {
        const uint8_t *w[B];
        for (int b = 0; b < B; b++) w[b] = panels[b];
        bool first = true;
        for (int s = 0; s < count; s++) {
            // Equal pieces of at most 63 look-ups: loops of one length are predicted well.
            const int length = segments[s].length, pieces = (length + kLookups - 1) / kLookups;
            const int piece = pieces == 1 ? length : ((length + pieces - 1) / pieces + 2) / 3 * 3;
            for (int done = 0; done < length; done += piece) {
                const int now = length - done < piece ? length - done : piece;
                if (ahead.at) {
                    const char *end = ahead.at + B * now * kBlock / ahead.share;
                    for (; ahead.at < end; ahead.at += kLine) _mm_prefetch(ahead.at, _MM_HINT_T1);
                }
                const uint16_t *p[kTile];
                for (int i = 0; i < kTile; i++) p[i] = bases[i] + segments[s].offset + done;
                constexpr int kStep = 4 / B;
                int i = 0;
                for (; i + kStep <= pairs; i += kStep) dot_piece<kStep, B>(p + i, w, now, result + i * 2 * kBlock, first);
                for (; i < pairs; i++) dot_piece<1, B>(p + i, w, now, result + i * 2 * kBlock, first);
                for (int b = 0; b < B; b++) w[b] += now * kBlock;
                first = false;
            }
        }
    }

    // result[block][pixel of 2*kTile][32]; the panels lie `stride` bytes apart.
    static void dot(const uint16_t *const *bases, int n, const Segment *segments, int count, long across, const void *panel,
                    size_t stride, int blocks, uint16_t *result, Ahead ahead) {
        const uint8_t *panels[2] = {(const uint8_t *)panel, (const uint8_t *)panel + stride};
        if (across && blocks == 2) dot_rows<2>(bases, n, segments, count, across, panels, result, ahead);
        else if (across) dot_rows<1>(bases, n, segments, count, across, panels, result, ahead);
        else if (blocks == 2) dot_blocks<2>(bases, n, segments, count, panels, result, ahead);
        else dot_blocks<1>(bases, n, segments, count, panels, result, ahead);
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

// Of every byte of two pixels: the lower nibbles as a pair, and the upper ones.
inline void pair_nibbles(__m128i a, __m128i b, __m128i &even, __m128i &odd) {
    const __m128i low = _mm_set1_epi8(15);
    even = _mm_or_si128(_mm_and_si128(a, low), _mm_slli_epi16(_mm_and_si128(b, low), 4));
    odd = _mm_or_si128(_mm_and_si128(_mm_srli_epi16(a, 4), low), _mm_andnot_si128(low, b));
}

// Sixteen or 32 nibbles at a time; what is written behind a run's last unit is overwritten by the next one.
void BitDot::prepare(const Conv &k, const void *in, int row, uint16_t *out, char *spare) {
    const uint32_t *words = padded_words(k, (const uint32_t *)in, row, (uint32_t *)spare);
    const size_t partner = (size_t)k.sw * k.groups * k.words;
    // Whole words: a row is one run of units. Otherwise each pixel's last word has units that do not count.
    const bool whole = k.units == 8 * k.words;
    const int runs = whole ? 1 : k.cols * k.groups, units = whole ? k.cols * k.groups * k.units : k.units;
    for (int x = 0; x < runs; x++, words += k.words, out += k.units) {
        int u = 0;
        for (; u + 32 <= units; u += 32) {
            const __m128i a = _mm_loadu_si128((const __m128i *)(words + u / 8));
            const __m128i b = _mm_loadu_si128((const __m128i *)(words + partner + u / 8));
            __m128i even, odd;
            pair_nibbles(a, b, even, odd);
            const __m256i first = _mm256_cvtepu8_epi16(_mm_unpacklo_epi8(even, odd));
            const __m256i second = _mm256_cvtepu8_epi16(_mm_unpackhi_epi8(even, odd));
            _mm256_storeu_si256((__m256i *)(out + u), _mm256_slli_epi16(first, 4));
            _mm256_storeu_si256((__m256i *)(out + u + 16), _mm256_slli_epi16(second, 4));
        }
        for (; u < units; u += 16) {
            const __m128i a = _mm_loadl_epi64((const __m128i *)(words + u / 8));
            const __m128i b = _mm_loadl_epi64((const __m128i *)(words + partner + u / 8));
            __m128i even, odd;
            pair_nibbles(a, b, even, odd);
            const __m256i wide = _mm256_cvtepu8_epi16(_mm_unpacklo_epi8(even, odd));
            _mm256_storeu_si256((__m256i *)(out + u), _mm256_slli_epi16(wide, 4));
        }
    }
}

auto places(const Conv &k) {
    return [&k](char *panel, int lane, int tap, int j) -> uint8_t & {
        const int at = lane < 16 ? 2 * lane : 2 * (lane - 16) + 1, row = tap / k.kw, column = tap % k.kw;
        const size_t unit = BitDot::across(k) ? ((size_t)row * k.units + j) * 3 + column : (size_t)tap * k.units + j;
        return ((uint8_t *)panel)[unit * kBlock + at];
    };
}
void pack_bits(const Conv &k, const uint8_t *weight, void *panels) { move_in(k, weight, panels, 4, places(k)); }
void unpack_bits(const Conv &k, const void *panels, uint8_t *weight) { move_back(k, panels, weight, 4, places(k)); }

}  // namespace

#include "table.inl"

const Kernels *avx2_kernels() {
    static constexpr Kernels kernels = table("avx2", {2, 4, kBlock, 16, 0}, conv_rows<BitDot>, true, BitDot::kBlocks);
    return &kernels;
}

}  // namespace xnorpp
