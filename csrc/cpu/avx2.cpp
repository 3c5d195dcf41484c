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

inline F load(const float *p) { return _mm256_loadu_ps(p); }
inline void store(float *p, F v) { _mm256_storeu_ps(p, v); }
inline F set1(float x) { return _mm256_set1_ps(x); }
inline F zero() { return _mm256_setzero_ps(); }
inline F add(F a, F b) { return _mm256_add_ps(a, b); }
inline F mul(F a, F b) { return _mm256_mul_ps(a, b); }
inline F div(F a, F b) { return _mm256_div_ps(a, b); }
inline F fma(F a, F b, F c) { return _mm256_fmadd_ps(a, b, c); }
// max and min give the second operand where one is NaN.
inline F relu(F v) { return _mm256_max_ps(_mm256_setzero_ps(), v); }
inline F clamp(F v, F lo, F hi) { return _mm256_min_ps(hi, _mm256_max_ps(lo, v)); }
inline F prelu(F v, F slope) {
    return _mm256_blendv_ps(_mm256_mul_ps(v, slope), v, _mm256_cmp_ps(v, _mm256_setzero_ps(), _CMP_GT_OQ));
}
// Either order of operands gives the other one where one is NaN; or-ing both keeps the NaN.
inline F max_nan(F a, F b) { return _mm256_or_ps(_mm256_max_ps(a, b), _mm256_max_ps(b, a)); }
inline F absolute(F v) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), v); }
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
    static constexpr int kTile = 5, kPair = 2, kSlack = 16, kWeightBytes = kBlock;
    static constexpr bool kBits = true;
    static constexpr bool kAhead = true;
    static constexpr long kMostUnits = 16383;  // 65535 bits a count
    static constexpr int kLookups = 63;        // between two flushes

    static void prepare(const Conv &k, const void *in, int row, uint16_t *out, char *spare);

    // The units of two pixels, each with another partner until now, as a pair.
    static void join(const uint16_t *first, const uint16_t *second, size_t n, uint16_t *out) {
        for (size_t i = 0; i < n; i++) out[i] = (uint16_t)((first[i] & 0xf0) | (second[i] & 0xf0) << 4);
    }

    template <int P>
    static void dot_pairs(const uint16_t *const *bases, const Segment *segments, int count, const uint8_t *w,
                          uint16_t *result, Ahead ahead) {
        bool first = true;
        for (int s = 0; s < count; s++) {
            const uint16_t *p[P];
            for (int i = 0; i < P; i++) p[i] = bases[i] + segments[s].offset;
            // Equal pieces of at most 63 look-ups: loops of one length are predicted well.
            const int length = segments[s].length, pieces = (length + kLookups - 1) / kLookups;
            const int piece = pieces == 1 ? length : ((length + pieces - 1) / pieces + 2) / 3 * 3;
            for (int done = 0; done < length; done += piece) {
                const int now = length - done < piece ? length - done : piece;
                if (ahead.at) {
                    const char *end = ahead.at + now * kBlock / ahead.share;
                    for (; ahead.at < end; ahead.at += kLine) _mm_prefetch(ahead.at, _MM_HINT_T1);
                }
                __m256i a[P], m[P];
                for (int i = 0; i < P; i++) a[i] = m[i] = _mm256_setzero_si256();
                int k = 0;
                for (; k + 3 <= now; k += 3, w += 3 * kBlock) {
                    const __m256i w0 = _mm256_load_si256((const __m256i *)w);
                    const __m256i w1 = _mm256_load_si256((const __m256i *)(w + kBlock));
                    const __m256i w2 = _mm256_load_si256((const __m256i *)(w + 2 * kBlock));
#pragma GCC unroll 8
                    for (int i = 0; i < P; i++) {
                        __m256i x = _mm256_shuffle_epi8(table(p[i][k]), w0);
                        x = _mm256_add_epi8(x, _mm256_shuffle_epi8(table(p[i][k + 1]), w1));
                        x = _mm256_add_epi8(x, _mm256_shuffle_epi8(table(p[i][k + 2]), w2));
                        a[i] = _mm256_add_epi8(a[i], x);
                        m[i] = _mm256_add_epi8(m[i], _mm256_srli_epi16(x, 4));
                    }
                }
                for (; k < now; k++, w += kBlock) {
                    const __m256i w0 = _mm256_load_si256((const __m256i *)w);
#pragma GCC unroll 8
                    for (int i = 0; i < P; i++) {
                        const __m256i x = _mm256_shuffle_epi8(table(p[i][k]), w0);
                        a[i] = _mm256_add_epi8(a[i], x);
                        m[i] = _mm256_add_epi8(m[i], _mm256_srli_epi16(x, 4));
                    }
                }
                for (int i = 0; i < P; i++) p[i] += now;
#pragma GCC unroll 8
                for (int i = 0; i < P; i++) flush(a[i], m[i], result + i * 2 * kBlock, first);
                first = false;
            }
        }
    }

    static void dot(const uint16_t *const *bases, int n, const Segment *segments, int count, const void *panel,
                    uint16_t *result, Ahead ahead) {
        const uint8_t *w = (const uint8_t *)panel;
        switch (n) {
            case 1: return dot_pairs<1>(bases, segments, count, w, result, ahead);
            case 2: return dot_pairs<2>(bases, segments, count, w, result, ahead);
            case 3: return dot_pairs<3>(bases, segments, count, w, result, ahead);
            case 4: return dot_pairs<4>(bases, segments, count, w, result, ahead);
            default: return dot_pairs<5>(bases, segments, count, w, result, ahead);
        }
    }
};

}  // namespace

#include "epilogue.inl"
#include "conv.inl"
#include "picture_pair.inl"
#include "pool.inl"

namespace {

// Sixteen nibbles at a time; what is written behind a pixel's last unit is overwritten by the next pixel.
void BitDot::prepare(const Conv &k, const void *in, int row, uint16_t *out, char *spare) {
    const uint32_t *words = padded_words(k, (const uint32_t *)in, row, (uint32_t *)spare);
    const __m128i low = _mm_set1_epi8(15);
    const size_t partner = (size_t)k.sw * k.groups * k.words;
    const int pixels = k.cols * k.groups;
    for (int x = 0; x < pixels; x++, words += k.words, out += k.units)
        for (int u = 0; u < k.units; u += 16) {
            const __m128i a = _mm_loadl_epi64((const __m128i *)(words + u / 8));
            const __m128i b = _mm_loadl_epi64((const __m128i *)(words + partner + u / 8));
            const __m128i even = _mm_or_si128(_mm_and_si128(a, low), _mm_slli_epi16(_mm_and_si128(b, low), 4));
            const __m128i odd = _mm_or_si128(_mm_and_si128(_mm_srli_epi16(a, 4), low), _mm_andnot_si128(low, b));
            const __m256i wide = _mm256_cvtepu8_epi16(_mm_unpacklo_epi8(even, odd));
            _mm256_storeu_si256((__m256i *)(out + u), _mm256_slli_epi16(wide, 4));
        }
}

void pack_bits(const Conv &k, const uint8_t *weight, void *panels) {
    each_weight(k, panels, k.units, [&](char *panel, int o, int lane, int tap, int j) {
        const int at = lane < 16 ? 2 * lane : 2 * (lane - 16) + 1;
        panel[((size_t)tap * k.units + j) * kBlock + at] = (char)weight_bits(k, weight, o, tap, j * 4, 4);
    });
}

}  // namespace

const Kernels *avx2_kernels() {
    static const Kernels kernels = {
        "avx2",
        {2, 4, kBlock, 16, 0},
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
        global_mean,
        abs_mean,
        finish_pixels,
    };
    return &kernels;
}

}  // namespace xnorpp
