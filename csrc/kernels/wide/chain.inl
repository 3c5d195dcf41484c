// Words counted in a chain: five operations for two words, which are 1,024 multiply-adds.
//
// Let s be the parity of all differing words so far, bit by bit, x the next one and y the one after it. A full adder turns
// s + x + y into their parity p and a carry c, s + x + y = p + 2*c, and p takes the place of s: of two words one is counted,
// and the last parity once. As p is a sum modulo 2 of pixels and weights alike,
//     p = (all words of the pixels up to y) ^ (all words of the filter up to y),
// both brackets, the prefixes, are made in advance: one for each output pixel and pair of words, and one in place of y in the
// panel. The carry needs no y: it is s where s equals x, and otherwise the opposite of p. What is left:
// two xor, one vpternlogd, one vpopcntd, one addition. An odd word is the first one: the parity that the chain begins with.
//
// Pixels of a prepared row lie side by side, word by word (a matrix of pixels and words is transposed), so that prefixes are
// made for sixteen pixels at once, and the addresses of a tile's pixels differ by constants.

namespace {

inline const uint32_t *padded_words(const Conv &k, const uint32_t *in, int row, uint32_t *out);  // conv.inl

// A row of words as the kernel sees it, padding included: words `begin`..`end` are read, all others are 0.
struct WordRow {
    const uint32_t *words;
    long begin, end;
    __attribute__((always_inline)) __m512i load(long at) const {
        const long from = begin - at, to = end - at;
        if (from <= 0 && to >= 16) return _mm512_loadu_si512(words + at);
        const uint32_t before = from <= 0 ? 0 : from >= 16 ? 0xffff : (1u << from) - 1, until = to <= 0 ? 0 : to >= 16 ? 0xffff : (1u << to) - 1;
        return _mm512_maskz_loadu_epi32((__mmask16)(until & ~before), words + at);
    }
};

// Sixteen pixels of kWords words each, word by word; `step` is the distance of two words of a pixel.
template <int kWords, bool kWhole>
__attribute__((always_inline)) inline void part_words(const WordRow &row, long from, __mmask16 real, uint32_t *to, size_t step) {
    const __m512i even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    const __m512i odd = _mm512_add_epi32(even, _mm512_set1_epi32(1));
    __m512i a[kWords], b[kWords];
#pragma GCC unroll 16
    for (int i = 0; i < kWords; i++) a[i] = row.load(from + 16 * i);
    // Each step parts the even words of a group from the odd ones.
#pragma GCC unroll 4
    for (int groups = 1; groups < kWords; groups *= 2) {
        const int size = kWords / groups;
#pragma GCC unroll 16
        for (int i = 0; i < kWords / 2; i++) {
            const int group = i / (size / 2), at = group * size + i % (size / 2) * 2, to_even = group * size + i % (size / 2);
            b[to_even] = _mm512_permutex2var_epi32(a[at], even, a[at + 1]);
            b[to_even + size / 2] = _mm512_permutex2var_epi32(a[at], odd, a[at + 1]);
        }
#pragma GCC unroll 16
        for (int i = 0; i < kWords; i++) a[i] = b[i];
    }
    // So the bits of a word's number are those of its place, in reverse.
#pragma GCC unroll 16
    for (int i = 0; i < kWords; i++) {
        int word = 0;
#pragma GCC unroll 4
        for (int bit = 1; bit < kWords; bit *= 2) word = 2 * word + (i / bit) % 2;
        if (kWhole) _mm512_storeu_si512(to + word * step, a[i]);
        else _mm512_mask_storeu_epi32(to + word * step, real, a[i]);
    }
}

template <int kWords>
void part_row(const WordRow &given, int columns, uint32_t *to, size_t step) {
    const WordRow row = given;
    int x = 0;
    for (const int whole = step % 16 ? columns - 15 : columns; x < whole; x += 16) part_words<kWords, true>(row, (long)x * kWords, 0xffff, to + x, step);
    if (x < columns) part_words<kWords, false>(row, (long)x * kWords, (__mmask16)((1u << (columns - x)) - 1), to + x, step);
}

// Row `row` of the padded image as planes: as many columns as the stride skips count as one pixel, with all of their words.
void part_planes(const Conv &k, const uint32_t *in, int row, uint32_t *to, uint32_t *spare) {
    const int columns = plane_columns(k), wanted = planes_across(k) * k.words, words = k.sw * k.words;
    const size_t step = chain_columns(k);
    const auto part = wanted < words ? nullptr : words == 1 ? part_row<1> : words == 2 ? part_row<2> : words == 4 ? part_row<4> : words == 8 ? part_row<8> : words == 16 ? part_row<16> : nullptr;
    if (!part) return transpose((const float *)padded_words(k, in, row, spare), (size_t)words, columns, wanted, (float *)to, step);
    if (k.pad_value > 0) return part({padded_words(k, in, row, spare), 0, (long)k.cols * k.words}, columns, to, step);
    const long width = (long)k.w * k.words, begin = (long)k.pw * k.words;
    const bool inside = row >= 0 && row < k.h;
    part({inside ? in + (row * width - begin) : in, begin, inside ? begin + width : begin}, columns, to, step);
}

// Where the words of a window lie in prepared rows, in bytes from the first one's place, in the order of the chain.
void place_words(const Conv &k, int32_t *places) {
    const size_t columns = chain_columns(k);
    int skip = (int)(k.total_units % 2);
    for (int row = 0; row < k.kh; row++)
        for (int column = 0; column < k.kw; column++) {
            const int at = column * k.dw;
            const size_t first = (size_t)row * k.dh * k.row_units + (size_t)(at % k.sw * k.words) * columns + at / k.sw;
            for (int j = 0; j < k.words; j++)
                if (skip) skip = 0;
                else *places++ = (int32_t)((first + (size_t)j * columns) * sizeof(uint32_t));
        }
}

// The prefixes of one output row, whose first window begins at `row`; those after the last pixel are of no meaning.
void join_prefixes(const Conv &k, const uint32_t *row, const int32_t *places, uint32_t *out) {
    const size_t pitch = prefix_pitch(k);
    const int32_t *end = places + 2 * chain_pairs(k);
    const bool odd = k.total_units % 2;
    if (pitch == 8) {
        const char *at = (const char *)row;
        __m256i parity = odd ? _mm256_loadu_si256((const __m256i *)at) : _mm256_setzero_si256();
        for (const int32_t *place = places; place != end; place += 2, out += 8) {
            const __m256i first = _mm256_loadu_si256((const __m256i *)(at + place[0])), second = _mm256_loadu_si256((const __m256i *)(at + place[1]));
            parity = _mm256_ternarylogic_epi32(parity, first, second, 0x96);
            _mm256_store_si256((__m256i *)out, parity);
        }
        return;
    }
    for (size_t x = 0; x < pitch; x += 16) {
        const char *at = (const char *)(row + x);
        uint32_t *to = out + x;
        __m512i parity = odd ? _mm512_loadu_si512(at) : _mm512_setzero_si512();
        for (const int32_t *place = places; place != end; place += 2, to += pitch) {
            parity = _mm512_ternarylogic_epi32(parity, _mm512_loadu_si512(at + place[0]), _mm512_loadu_si512(at + place[1]), 0x96);
            _mm512_store_si512(to, parity);
        }
    }
}

// w ^ the word of pixel I.
template <int I>
__attribute__((always_inline)) inline __m512i differing(__m512i w, const char *at) {
    return _mm512_xor_si512(w, _mm512_set1_epi32(*(const int32_t *)(at + 4 * I)));
}

// The first pair of pixel I, before which there is an odd word, or nothing.
template <int I>
__attribute__((always_inline)) inline void add_pair(__m512i &parity, __m512i &carries, __m512i w0, __m512i w1, const char *first, const char *prefix) {
    const __m512i after = differing<I>(w1, prefix);
    carries = _mm512_popcnt_epi32(_mm512_ternarylogic_epi32(differing<I>(w0, first), parity, after, 0xd4));
    parity = after;
}
template <int I>
__attribute__((always_inline)) inline void begin_pair(__m512i &parity, __m512i &carries, __m512i w0, __m512i w1, const char *first, const char *prefix) {
    parity = differing<I>(w1, prefix);
    carries = _mm512_popcnt_epi32(_mm512_andnot_si512(parity, differing<I>(w0, first)));
}

// Two pairs of pixel I, so that parities change places without being moved. Left to the compiler they are moved all the same,
// or do not fit the registers. It reads memory that the compiler does not know of: see `settled`.
template <int I>
__attribute__((always_inline)) inline void add_pairs(__m512i &parity, __m512i &carries, const __m512i (&w)[4], const char *first, const char *prefix,
                                                     const char *second, const char *next) {
    __m512i x, between;
    __asm__("vpxord %c[i](%[first])%{1to16%}, %[w0], %[x]\n\t"
            "vpxord %c[i](%[prefix])%{1to16%}, %[w1], %[between]\n\t"
            "vpternlogd $0xd4, %[between], %[parity], %[x]\n\t"
            "vpopcntd %[x], %[x]\n\t"
            "vpaddd %[x], %[carries], %[carries]\n\t"
            "vpxord %c[i](%[second])%{1to16%}, %[w2], %[x]\n\t"
            "vpxord %c[i](%[next])%{1to16%}, %[w3], %[parity]\n\t"
            "vpternlogd $0xd4, %[parity], %[between], %[x]\n\t"
            "vpopcntd %[x], %[x]\n\t"
            "vpaddd %[x], %[carries], %[carries]"
            : [parity] "+v"(parity), [carries] "+v"(carries), [x] "=&v"(x), [between] "=&v"(between)
            : [w0] "v"(w[0]), [w1] "v"(w[1]), [w2] "v"(w[2]), [w3] "v"(w[3]), [first] "r"(first), [prefix] "r"(prefix),
              [second] "r"(second), [next] "r"(next), [i] "i"(4 * I));
}

// A panel is read once a band, and where rows are few each core reads all of them: with two pairs of one panel so many bytes of
// the next ones are asked for. The last panel of a layer asks for the next layer's, which lie after it.
constexpr int kAheadBytes = 64;

// The last parities and the carries of a tile: 2*carries + popcount(parity) is the count.
template <int P, int... I>
__attribute__((always_inline)) inline void count_chain(const Run &run, const uint32_t *w, const char *ahead, __m512i (&parity)[P], __m512i (&carries)[P],
                                                       std::integer_sequence<int, I...>) {
    const char *at = settled(run.at), *prefix = (const char *)run.prefixes;
    const int32_t *place = run.places, *end = place + 2 * run.pairs;
    const long step = run.prefix_step;
    if (run.odd) {
        const __m512i word = _mm512_load_si512(w);
        ((parity[I] = differing<I>(word, at)), ...);
        w += 16;
    }
    if (run.pairs % 2) {
        const __m512i w0 = _mm512_load_si512(w), w1 = _mm512_load_si512(w + 16);
        const char *first = at + place[0];
        if (run.odd) (add_pair<I>(parity[I], carries[I], w0, w1, first, prefix), ...);
        else (begin_pair<I>(parity[I], carries[I], w0, w1, first, prefix), ...);
        place += 2, prefix += step, w += 32;
    } else {
        ((carries[I] = _mm512_setzero_si512()), ...);
        if (!run.odd) ((parity[I] = _mm512_setzero_si512()), ...);
    }
    for (; place != end; place += 4, prefix += 2 * step, w += 64, ahead += kAheadBytes) {
        _mm_prefetch(ahead, _MM_HINT_T1);
        const __m512i words[4] = {_mm512_load_si512(w), _mm512_load_si512(w + 16), _mm512_load_si512(w + 32), _mm512_load_si512(w + 48)};
        const char *first = at + place[0], *second = at + place[2], *next = prefix + step;
        (add_pairs<I>(parity[I], carries[I], words, first, prefix, second, next), ...);
    }
}

}  // namespace
