// AVX-512 with VPOPCNTDQ and VNNI: Intel since Ice Lake, AMD since Zen 4.
//
// The dot product. 32 channels of a pixel are one word, broadcast to 16 lanes; each lane holds the same word of another
// filter. xor, vpopcntd, add: three operations for 512 multiply-adds, and the sums are 32-bit from the
// start, so nothing is ever flushed.
//
// Kernels three columns wide, which is most of them, do with eight operations for 1,536. Let d1, d2, d3 be the differing
// bits of the three columns. A full adder turns them into their parity s and their carry c, d1 + d2 + d3 = s + 2*c, so two
// words are counted instead of three. The parity is a sum modulo 2 of pixels and weights alike,
//     s = (x1^x2^x3) ^ (w1^w2^w3),
// so both brackets are made in advance: the first when a row is prepared, the second in place of w3 in the panel. The
// carry needs no third difference either: it is d1 | d2 where s is 0, and d1 & d2 where s is 1. What is left:
// three xor, one vpternlogd, two vpopcntd, two additions.
#include <immintrin.h>

#include <utility>

#include "kernels.h"

namespace xnorpp {

#include "wide/lanes.inl"
#include "curves.inl"
#include "epilogue.inl"

namespace {

// A word of a prepared row, and the parity of it and the same word of the next two columns.
struct Triple {
    uint32_t word, parity;
};

// Distances of pixels from the first one as an address has them: a register times 1, 2, 4 or 8. Twelve pixels need six, and
// fourteen seven.
struct Strides {
    ptrdiff_t one, three, five, seven, nine, eleven, thirteen;
    static Strides of(ptrdiff_t bytes) { return {bytes, 3 * bytes, 5 * bytes, 7 * bytes, 9 * bytes, 11 * bytes, 13 * bytes}; }
    template <int I>
    static constexpr int kScale = I == 0 ? 1 : I % 8 == 0 ? 8 : I % 4 == 0 ? 4 : I % 2 == 0 ? 2 : 1;
    template <int I>
    __attribute__((always_inline)) inline ptrdiff_t odd() const {
        constexpr int kOdd = I / kScale<I>;
        return kOdd == 1 ? one : kOdd == 3 ? three : kOdd == 5 ? five : kOdd == 7 ? seven : kOdd == 9 ? nine : kOdd == 11 ? eleven : thirteen;
    }
};

// w ^ the word `kBytes` behind `at` + I pixels, in one instruction. Left to the compiler, each pixel has a pointer of its own,
// and they do not fit the registers. It reads memory that the compiler does not know of: see `settled`.
template <int I, int kBytes>
__attribute__((always_inline)) inline __m512i differing(__m512i w, const char *at, const Strides &s) {
    __m512i d;
    if constexpr (I == 0)
        __asm__("vpxord %c[bytes](%[at])%{1to16%}, %[w], %[d]" : [d] "=v"(d) : [w] "v"(w), [at] "r"(at), [bytes] "i"(kBytes));
    else
        __asm__("vpxord %c[bytes](%[at],%[stride],%c[scale])%{1to16%}, %[w], %[d]"
                : [d] "=v"(d)
                : [w] "v"(w), [at] "r"(at), [stride] "r"(s.odd<I>()), [scale] "i"(Strides::kScale<I>), [bytes] "i"(kBytes));
    return d;
}

// The pointer, after everything that was written before.
inline const char *settled(const void *at) {
    __asm__ volatile("" : "+r"(at) : : "memory");
    return (const char *)at;
}

// A sum that stays in its register, and a difference.
__attribute__((always_inline)) inline void take_from(__m512i &rest, __m512i v) { __asm__("vpsubd %1, %0, %0" : "+v"(rest) : "v"(v)); }
__attribute__((always_inline)) inline void add_to(__m512i &sum, __m512i v) { __asm__("vpaddd %1, %0, %0" : "+v"(sum) : "v"(v)); }

}  // namespace

#include "wide/points.inl"

namespace {

struct BitDot {
    using Unit = Triple;
    using Result = int32_t;
    static constexpr int kTile = 12, kPair = 1, kSlack = 16, kWeightBytes = 4 * kBlock;
    static constexpr bool kBits = true, kLimits = true;
    static constexpr int kBlocks = 1;
    static constexpr long kMostUnits = 1L << 26;

    static void prepare(const Conv &k, const void *in, int row, Triple *out, char *spare);

    // Bit c: counts[c] < limits[c], of 32 channels.
    static uint32_t below(const int32_t *counts, const int16_t *limits) {
        const __m512i low = _mm512_cvtepi16_epi32(_mm256_loadu_si256((const __m256i *)limits));
        const __m512i high = _mm512_cvtepi16_epi32(_mm256_loadu_si256((const __m256i *)(limits + 16)));
        const uint32_t first = _mm512_cmplt_epi32_mask(_mm512_loadu_si512(counts), low);
        return first | (uint32_t)_mm512_cmplt_epi32_mask(_mm512_loadu_si512(counts + 16), high) << 16;
    }

    template <int P>
    static void dot_pixels(const Triple *const *bases, const Segment *segments, int count, const uint32_t *w, int32_t *result) {
        __m512i sum[P][2];
        for (int i = 0; i < P; i++) sum[i][0] = sum[i][1] = _mm512_setzero_si512();
        for (int s = 0; s < count; s++) {
            const Triple *p[P];
            for (int i = 0; i < P; i++) p[i] = bases[i] + segments[s].offset;
            const int length = segments[s].length;
            for (int u = 0; u < length; u++, w += kBlock) {
                const __m512i w0 = _mm512_load_si512(w), w1 = _mm512_load_si512(w + 16);
#pragma GCC unroll 16
                for (int i = 0; i < P; i++) {
                    const __m512i a = _mm512_set1_epi32((int)p[i][u].word);
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

    static void dot(const Triple *const *bases, int n, const Segment *segments, int count, const void *panel, int32_t *result) {
        const uint32_t *w = (const uint32_t *)panel;
        if (n == kTile) return dot_pixels<kTile>(bases, segments, count, w, result);
        int i = 0;
        for (; i + 4 <= n; i += 4) dot_pixels<4>(bases + i, segments, count, w, result + i * kBlock);
        for (; i < n; i++) dot_pixels<1>(bases + i, segments, count, w, result + i * kBlock);
    }
};

// Three columns at a time: see above. The panels of such a convolution are [half of the 32 filters][row][unit][3][16].
bool in_triples(const Conv &k) { return k.kw == 3 && k.dw == 1 && k.groups == 1 && k.segment_count == k.kh; }

// What a run of neighbouring pixels of one output row needs.
struct Run {
    const Triple *at;            // the first pixel's window
    Strides pixel;               // bytes to the other pixels
    long column, row;            // bytes to the next column, row
    int rows, units;
    const uint32_t *panel;
    int32_t *counts;             // [pixel][32], or null: signs are wanted
    const int16_t *limits;       // of case 0 of this row
    const uint16_t *cases;       // of each pixel
    int channels;                // limits a case has
    uint32_t turn;
    uint8_t *bits;
    long bits_stride;
    int block;
    const Epilogue *line;        // finished in registers, with its places moved to the first pixel
    const float *base;           // what twice the counts are taken from, of case 0 of this row
    const float *maps;           // End::Line: twice the factors of the pixels
};

}  // namespace

#include "wide/ends.inl"

namespace {

// 2*carries - rest is the count: `rest` comes as what the parities are taken from.
template <int P, int... I>
__attribute__((always_inline)) inline void count_triples(const Run &run, const uint32_t *w, __m512i (&rest)[P], __m512i (&carries)[P],
                                                         std::integer_sequence<int, I...>) {
    const Strides strides = run.pixel;
    const char *row = settled(run.at);
    const long column = run.column, wide = (long)run.units * (long)sizeof(Triple), gap = run.row - wide;
    ((carries[I] = _mm512_setzero_si512()), ...);
    for (int r = 0; r < run.rows; r++, row += gap)
        for (const char *end = row + wide; row != end; row += sizeof(Triple), w += 48) {
            const __m512i w1 = _mm512_load_si512(w), w2 = _mm512_load_si512(w + 16), w3 = _mm512_load_si512(w + 32);
            const auto step = [&](auto i) __attribute__((always_inline)) {
                constexpr int kI = decltype(i)::value;
                const __m512i d1 = differing<kI, 0>(w1, row, strides);
                const __m512i d2 = differing<kI, 0>(w2, row + column, strides);
                const __m512i parity = differing<kI, 4>(w3, row, strides);
                take_from(rest[kI], _mm512_popcnt_epi32(parity));
                add_to(carries[kI], _mm512_popcnt_epi32(_mm512_ternarylogic_epi32(d1, d2, parity, 0xd4)));
            };
            (step(std::integral_constant<int, I>{}), ...);
        }
}

// What becomes of the counts: they are stored, compared with limits, or finished in registers by one of two lines.
enum class End { Counts, Signs, Line, Floats };

template <int P, End E>
void run_triples(const Run &given) {
    const Run run = given;  // a copy: a store of bits might change the original
    const size_t half = (size_t)run.rows * run.units * 48;
    const bool alike = run.cases[0] == run.cases[P - 1];  // a case never comes back, so that all of them are
    for (int h = 0; h < 2; h++) {
        __m512i rest[P], carries[P];
        const auto limit = [&](int i) __attribute__((always_inline)) {
            const int16_t *limits = run.limits + (size_t)run.cases[i] * run.channels + h * 16;
            return _mm512_cvtepi16_epi32(_mm256_loadu_si256((const __m256i *)limits));
        };
        const int c = run.block * kBlock + h * 16;
        const auto half_base = [&](int i) __attribute__((always_inline)) {
            return _mm512_cvtps_epi32(mul(load(run.base + c + (size_t)run.cases[i] * run.channels), set1(0.5f)));
        };
        rest[0] = E == End::Signs ? limit(0) : E == End::Line ? half_base(0) : _mm512_setzero_si512();
#pragma GCC unroll 12
        for (int i = 1; i < P; i++) rest[i] = rest[0];
        if (E == End::Signs && !alike)
#pragma GCC unroll 12
            for (int i = 1; i < P; i++) rest[i] = limit(i);
        if (E == End::Line && !alike)
#pragma GCC unroll 12
            for (int i = 1; i < P; i++) rest[i] = half_base(i);
        count_triples<P>(run, run.panel + h * half, rest, carries, std::make_integer_sequence<int, P>{});
        if constexpr (E == End::Signs) {
            uint8_t *bits = run.bits + 2 * h;
            const uint32_t turn = run.turn >> 16 * h;
#pragma GCC unroll 12
            for (int i = 0; i < P; i++, bits += run.bits_stride) {
                const __m512i twice = _mm512_add_epi32(carries[i], carries[i]);
                const uint16_t word = (uint16_t)(turn ^ _mm512_cmplt_epi32_mask(twice, rest[i]));
                __builtin_memcpy(bits, &word, 2);
            }
            continue;
        }
        if constexpr (E == End::Line) {
            finish_in_registers<P>(run, c, rest, carries);
            continue;
        }
        __m512i counts[P];
#pragma GCC unroll 12
        for (int i = 0; i < P; i++) counts[i] = _mm512_sub_epi32(_mm512_add_epi32(carries[i], carries[i]), rest[i]);
        if constexpr (E == End::Floats) {
            __m512 v[P][1];
#pragma GCC unroll 12
            for (int i = 0; i < P; i++) {
                const __m512 base = _mm512_loadu_ps(run.base + c + (size_t)run.cases[i] * run.channels);
                v[i][0] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(counts[i]), _mm512_set1_ps(-2.0f), base);
            }
            end_points(*run.line, v, 0, c);
        }
#pragma GCC unroll 12
        for (int i = 0; E == End::Counts && i < P; i++) _mm512_storeu_si512(run.counts + i * kBlock + h * 16, counts[i]);
    }
}

template <End E, int... I>
constexpr auto runs_of(int n, std::integer_sequence<int, I...>) {
    constexpr decltype(&run_triples<1, E>) kRuns[] = {run_triples<I + 1, E>...};
    return kRuns[n - 1];
}

}  // namespace

#include "product.inl"
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

void BitDot::prepare(const Conv &k, const void *in, int row, Triple *out, char *spare) {
    const uint32_t *words = padded_words(k, (const uint32_t *)in, row, (uint32_t *)spare);
    const __m512i low = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    const __m512i high = _mm512_add_epi32(low, _mm512_set1_epi32(8));
    const int next = in_triples(k) ? k.units : 0;
    for (int i = 0; i < k.row_units; i += 16) {
        const int left = k.row_units - i, rest = left - 2 * next;  // the last two columns begin no window
        const __mmask16 real = left >= 16 ? 0xffff : (__mmask16)((1u << left) - 1);
        const __mmask16 begins = rest >= 16 ? 0xffff : rest <= 0 ? 0 : (__mmask16)((1u << rest) - 1);
        const __m512i word = _mm512_maskz_loadu_epi32(real, words + i);
        const __m512i second = _mm512_maskz_loadu_epi32(begins, words + i + next);
        const __m512i third = _mm512_maskz_loadu_epi32(begins, words + i + 2 * next);
        const __m512i parity = _mm512_ternarylogic_epi32(word, second, third, 0x96);
        _mm512_storeu_si512(out + i, _mm512_permutex2var_epi32(word, low, parity));
        if (left > 8) _mm512_storeu_si512(out + i + 8, _mm512_permutex2var_epi32(word, high, parity));
    }
}

void pack_bits(const Conv &k, const uint8_t *weight, void *panels) {
    const bool triples = in_triples(k);
    each_weight(k, panels, k.units, [&](char *panel, int o, int lane, int tap, int j) {
        const uint32_t bits = weight_bits(k, weight, o, tap, j * 32, 32);
        uint32_t *words = (uint32_t *)panel;
        if (!triples) {
            words[((size_t)tap * k.units + j) * kBlock + lane] = bits;
            return;
        }
        const int row = tap / 3, column = tap % 3;
        uint32_t *triple = words + (((size_t)(lane / 16) * k.kh + row) * k.units + j) * 48 + lane % 16;
        if (column < 2) triple[16 * column] = bits;
        triple[32] ^= bits;
    });
}

void conv_bits(const Conv &k, const Epilogue &e, const void *in, int y0, int y1, int b0, int b1, char *scratch, Prepared *prepared) {
    if (!in_triples(k)) return conv_rows<BitDot>(k, e, in, y0, y1, b0, b1, scratch, prepared);
    constexpr int kMost = 12;
    using Sizes = std::make_integer_sequence<int, kMost>;
    scratch = (char *)round_up((size_t)scratch, kLine);
    Triple *rows = (Triple *)(scratch + tile_bytes(k));
    const size_t band_rows = (size_t)(k.band - 1) * k.sh + (size_t)(k.kh - 1) * k.dh + 1;
    char *spare = (char *)round_up((size_t)(rows + band_rows * k.row_units + BitDot::kSlack), kLine);
    int32_t *counts = (int32_t *)scratch;
    float maps[kMost];
    Run run;
    run.maps = maps, run.pixel = Strides::of((long)k.sw * k.units * (long)sizeof(Triple));
    run.column = (long)k.units * (long)sizeof(Triple);
    run.row = (long)k.dh * k.row_units * (long)sizeof(Triple);
    run.rows = k.kh, run.units = k.units, run.channels = k.channels_padded;
    run.counts = counts;
    run.bits_stride = e.bits_stride;
    Epilogue line = e;
    run.line = &line;
    // Halves of dot products are whole numbers where that of a pixel is even, and a factor must have its double.
    const bool halves = is_usual(e) && k.fan % 2 == 0 && have_doubles(e.map + y0 * k.ow, (y1 - y0) * k.ow);
    const End end = e.limits ? End::Signs : halves ? End::Line : ends_in_registers(e) ? End::Floats : End::Counts;
    const int tiles = (k.ow + kMost - 1) / kMost;
    const int shortest = k.ow / tiles, longer = k.ow % tiles;  // the first ones have a pixel more
    for (int top = y0; top < y1; top += k.band) {
        const int bottom = top + k.band < y1 ? top + k.band : y1;
        bring_rows<BitDot>(k, in, top, bottom, rows, spare, prepared);
        for (int block = b0; block < b1; block++) {
            run.block = block;
            run.panel = (const uint32_t *)((const char *)k.weights + (size_t)block * k.panel_bytes);
            for (int y = top; y < bottom; y++) {
                const Triple *row = rows + (size_t)(y - top) * k.sh * k.row_units;
                const size_t first_case = (size_t)k.row_case[y] * k.col_cases * k.channels_padded;
                for (int x = 0, n, tile = 0; tile < tiles; x += n, tile++) {
                    n = shortest + (tile < longer);
                    run.at = row + (size_t)x * k.sw * k.units;
                    run.cases = k.col_case + x;
                    const size_t first = (size_t)y * k.ow + x;
                    run.base = k.base + first_case;
                    if (end == End::Signs) {
                        run.limits = e.limits + first_case + block * kBlock;
                        run.turn = e.turn[block];
                        run.bits = e.bits + first * e.bits_stride + (size_t)block * kBlock / 8;
                        runs_of<End::Signs>(n, Sizes())(run);
                        continue;
                    }
                    if (end != End::Counts) line.out = e.out + first * e.out_stride;
                    if (end == End::Line) {
                        for (int i = 0; i < n; i++) maps[i] = 2 * e.map[first + i];
                        line.residual = e.residual + first * e.residual_stride;
                        line.bits = e.bits + first * e.bits_stride;
                        runs_of<End::Line>(n, Sizes())(run);
                        continue;
                    }
                    if (end == End::Floats) {
                        runs_of<End::Floats>(n, Sizes())(run);
                        continue;
                    }
                    runs_of<End::Counts>(n, Sizes())(run);
                    int pixels[kMost];
                    const float *base[kMost];
                    for (int i = 0; i < n; i++) {
                        pixels[i] = (int)first + i;
                        base[i] = k.base + first_case + (size_t)run.cases[i] * k.channels_padded;
                    }
                    finish_tile(e, WideBaseMinus{counts, base}, pixels, n, block * kBlock);
                }
            }
        }
    }
}

}  // namespace

#include "stem/bytes.inl"
#include "table.inl"

const Kernels *avx512_kernels() {
    static constexpr Kernels kernels = with_bytes(table("avx512", {sizeof(Triple), 32, 4 * kBlock, 16, 0}, conv_bits, true, 1));
    return &kernels;
}

}  // namespace xnorpp
