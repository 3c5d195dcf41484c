// AVX-512 with VPOPCNTDQ and VNNI: Intel since Ice Lake, AMD since Zen 4.
//
// The dot product. 32 channels of a pixel are one word, broadcast to 16 lanes; each lane holds the same word of another
// filter. xor, vpopcntd, add: three operations for 512 multiply-adds, and the sums are 32-bit from the
// start, so nothing is ever flushed.
//
// Counted in a chain (wide/chain.inl), the words of most convolutions do with five operations for 1,024.
#include <immintrin.h>

#include <utility>

#include "kernels.h"
#include "wide/chain.h"

namespace xnorpp {

#include "wide/lanes.inl"
#include "curves.inl"
#include "epilogue.inl"

namespace {

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

// The pointer, after everything that was written before.
inline const char *settled(const void *at) {
    __asm__ volatile("" : "+r"(at) : : "memory");
    return (const char *)at;
}

}  // namespace

#include "wide/points.inl"

namespace {

struct BitDot {
    using Unit = uint32_t;
    using Result = int32_t;
    static constexpr int kTile = 12, kPair = 1, kSlack = 16, kWeightBytes = 4 * kBlock;
    static constexpr bool kBits = true, kLimits = true;
    static constexpr int kBlocks = 1;
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
    static void dot_pixels(const uint32_t *const *bases, const Segment *segments, int count, const uint32_t *w, int32_t *result) {
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

    static void dot(const uint32_t *const *bases, int n, const Segment *segments, int count, const void *panel, int32_t *result) {
        const uint32_t *w = (const uint32_t *)panel;
        if (n == kTile) return dot_pixels<kTile>(bases, segments, count, w, result);
        int i = 0;
        for (; i + 4 <= n; i += 4) dot_pixels<4>(bases + i, segments, count, w, result + i * kBlock);
        for (; i < n; i++) dot_pixels<1>(bases + i, segments, count, w, result + i * kBlock);
    }
};

// What a run of neighbouring pixels of one output row needs.
struct Run {
    const uint32_t *at;          // the first pixel's window
    const uint32_t *prefixes;    // of the first pixel
    long prefix_step;            // bytes to those of the next pair
    const int32_t *places;       // of all words but an odd one
    int pairs;
    bool odd;                    // whether there is an odd word
    const uint32_t *panel;
    const char *ahead;           // a part of the next panels, which this run asks for: a line for each two pairs
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

#include "transpose.inl"
#include "wide/chain.inl"
#include "wide/ends.inl"

namespace {

// What becomes of the counts: they are stored, compared with limits, or finished in registers: by one of two lines that networks
// are full of, or by any fused one.
enum class End { Counts, Signs, Line, Floats, Fused };

template <int P, End E>
void run_tile(const Run &given) {
    const Run run = given;  // a copy: a store of bits might change the original
    const size_t half = ((size_t)run.pairs * 2 + run.odd) * 16;
    const bool alike = run.cases[0] == run.cases[P - 1];  // a case never comes back, so that all of them are
    for (int h = 0; h < 2; h++) {
        __m512i counts[P], parity[P];  // carries first
        count_chain<P>(run, run.panel + h * half, run.ahead + h * (run.pairs / 2) * kAheadBytes, parity, counts, std::make_integer_sequence<int, P>{});
#pragma GCC unroll 12
        for (int i = 0; i < P; i++) counts[i] = _mm512_dpwssd_epi32(_mm512_popcnt_epi32(parity[i]), counts[i], _mm512_set1_epi32(2));
        const int c = run.block * kBlock + h * 16;
        if constexpr (E == End::Signs) {
            const auto limit = [&](int i) __attribute__((always_inline)) {
                const int16_t *limits = run.limits + (size_t)run.cases[i] * run.channels + h * 16;
                return _mm512_cvtepi16_epi32(_mm256_loadu_si256((const __m256i *)limits));
            };
            uint8_t *bits = run.bits + 2 * h;
            const uint32_t turn = run.turn >> 16 * h;
            const auto compare = [&](auto limit_of) __attribute__((always_inline)) {
#pragma GCC unroll 12
                for (int i = 0; i < P; i++, bits += run.bits_stride) {
                    const uint16_t word = (uint16_t)(turn ^ _mm512_cmplt_epi32_mask(counts[i], limit_of(i)));
                    __builtin_memcpy(bits, &word, 2);
                }
            };
            if (alike) {
                const __m512i first = limit(0);
                compare([&](int) __attribute__((always_inline)) { return first; });
            } else {
                compare(limit);
            }
            continue;
        }
        if constexpr (E == End::Line) {
            finish_in_registers<P>(run, c, alike, counts);
            continue;
        }
        if constexpr (E == End::Fused) {
            end_line<P>(*run.line, run, c, counts);
            continue;
        }
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
    constexpr decltype(&run_tile<1, E>) kRuns[] = {run_tile<I + 1, E>...};
    return kRuns[n - 1];
}

}  // namespace

#include "norm.inl"
#include "product.inl"
#include "conv.inl"
#include "real/pointwise.inl"
#include "real/grouped.inl"
#include "stem/whole.inl"
#include "stem/image_pair.inl"
#include "stem/image_quad.inl"
#include "stem/image_eight.inl"
#include "pool.inl"
#include "stem/pooled.inl"

namespace {

void BitDot::prepare(const Conv &k, const void *in, int row, uint32_t *out, char *spare) {
    if (in_chain(k)) part_planes(k, (const uint32_t *)in, row, out, (uint32_t *)spare);
    else __builtin_memcpy(out, padded_words(k, (const uint32_t *)in, row, (uint32_t *)spare), (size_t)k.row_units * 4);
}

// Panels of a chain: [half of the 32 filters], each an odd word and then pairs of the first word and the prefix up to the
// second one, [16].
struct WordPlace {
    size_t at;
    bool first, prefix;
    WordPlace(const Conv &k, int lane, int tap, int j) {
        const size_t all = (size_t)k.kh * k.kw * k.units, word = (size_t)tap * k.units + j;
        const bool chain = in_chain(k);
        first = word == 0, prefix = chain && (word + all) % 2 && word;
        at = chain ? ((size_t)(lane / 16) * all + word) * 16 + lane % 16 : word * kBlock + lane;
    }
};
void pack_bits(const Conv &k, const uint8_t *weight, void *panels) {
    uint32_t prefix = 0;
    each_weight(k, panels, k.units, [&](char *panel, int o, int lane, int tap, int j) {
        const uint32_t bits = weight_bits(k, weight, o, tap, j * 32, 32);
        const WordPlace place(k, lane, tap, j);
        prefix = place.first ? bits : prefix ^ bits;
        ((uint32_t *)panel)[place.at] = place.prefix ? prefix : bits;
    });
}

void unpack_bits(const Conv &k, const void *panels, uint8_t *weight) {
    uint32_t prefix = 0;
    each_unit(k, (void *)panels, k.units, [&](char *panel, int o, int lane, int tap, int j) {
        const WordPlace place(k, lane, tap, j);
        const uint32_t word = ((const uint32_t *)panel)[place.at], bits = place.prefix ? word ^ prefix : word;
        prefix = place.first ? bits : prefix ^ bits;
        put_bits(k, weight, o, tap, j * 32, 32, bits);
    });
}

void conv_bits(const Conv &k, const Epilogue &e, const void *in, int y0, int y1, int b0, int b1, char *scratch, Prepared *prepared) {
    if (!in_chain(k)) return conv_rows<BitDot>(k, e, in, y0, y1, b0, b1, scratch, prepared);
    constexpr int kMost = 12;
    using Sizes = std::make_integer_sequence<int, kMost>;
    scratch = (char *)round_up((size_t)scratch, kLine);
    uint32_t *rows = (uint32_t *)(scratch + tile_bytes(k));
    const size_t band_rows = (size_t)(k.band - 1) * k.sh + (size_t)(k.kh - 1) * k.dh + 1;
    char *spare = (char *)round_up((size_t)(rows + band_rows * k.row_units + BitDot::kSlack), kLine);
    int32_t *counts = (int32_t *)scratch;
    uint32_t *prefixes = (uint32_t *)(spare + padded_row_bytes(k));  // a line's begin
    const size_t row_prefixes = prefix_bytes(k) / sizeof(uint32_t);
    int32_t *places = (int32_t *)round_up((size_t)(prefixes + k.band * row_prefixes) + kLine, kLine);
    place_words(k, places);
    Prepared own;  // rows that two bands share
    if (!prepared) prepared = &own;
    float maps[kMost];
    Run run;
    run.maps = maps, run.channels = k.channels_padded;
    run.places = places, run.prefix_step = (long)(prefix_pitch(k) * sizeof(uint32_t));
    run.pairs = (int)chain_pairs(k), run.odd = k.total_units % 2;
    run.counts = counts;
    run.bits_stride = e.bits_stride;
    Epilogue line = e;
    run.line = &line;
    // Halves of dot products are whole numbers where that of a pixel is even, and a factor must have its double.
    const bool halves = is_usual(e) && k.fan % 2 == 0 && have_doubles(e.map + y0 * k.ow, (y1 - y0) * k.ow);
    const bool fused = e.fused && e.channels % kBlock == 0;
    const End end = e.limits ? End::Signs : halves                 ? End::Line
                    : ends_in_registers(e) ? End::Floats
                    : fused                ? End::Fused
                                           : End::Counts;
    const int tiles = (k.ow + kMost - 1) / kMost;
    const size_t asked = (size_t)(run.pairs / 2) * 2 * kAheadBytes;  // by a run, of both halves
    const int shortest = k.ow / tiles, longer = k.ow % tiles;  // the first ones have a pixel more
    for (int top = y0; top < y1; top += k.band) {
        const int bottom = top + k.band < y1 ? top + k.band : y1;
        if (bring_rows<BitDot>(k, in, top, bottom, rows, spare, prepared))
            for (int y = 0; y < bottom - top; y++) join_prefixes(k, rows + (size_t)y * k.sh * k.row_units, places, prefixes + y * row_prefixes);
        for (int block = b0; block < b1; block++) {
            run.block = block;
            run.panel = (const uint32_t *)((const char *)k.weights + (size_t)block * k.panel_bytes);
            run.ahead = (const char *)run.panel + k.panel_bytes;
            for (int y = top; y < bottom; y++) {
                const uint32_t *row = rows + (size_t)(y - top) * k.sh * k.row_units;
                const size_t first_case = (size_t)k.row_case[y] * k.col_cases * k.channels_padded;
                for (int x = 0, n, tile = 0; tile < tiles; x += n, tile++) {
                    n = shortest + (tile < longer);
                    if (y > top || tile) run.ahead += asked;
                    run.at = row + x;
                    run.prefixes = prefixes + (y - top) * row_prefixes + x;
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
                    if (e.out && end != End::Counts) line.out = e.out + first * e.out_stride;
                    if (end == End::Line) {
                        for (int i = 0; i < n; i++) maps[i] = 2 * e.map[first + i];
                        line.residual = e.residual + first * e.residual_stride;
                        line.bits = e.bits + first * e.bits_stride;
                        runs_of<End::Line>(n, Sizes())(run);
                        continue;
                    }
                    if (end == End::Fused) {
                        line.residual = e.residual ? e.residual + first * e.residual_stride : nullptr;
                        line.bits = e.bits ? e.bits + first * e.bits_stride : nullptr;
                        line.map = e.map ? e.map + first : nullptr, line.sign_map = e.sign_map ? e.sign_map + first : nullptr;
                        runs_of<End::Fused>(n, Sizes())(run);
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
    static constexpr Kernels kernels = with_bytes(table("avx512", {sizeof(uint32_t), 32, 4 * kBlock, 16, 0, true}, conv_bits, true, 1));
    return &kernels;
}

}  // namespace xnorpp
