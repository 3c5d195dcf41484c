// The stem of ImageNet networks with its max pool (stem/pooled.inl) by a matrix unit: 7x7 with stride 2 over three channels.
//
// Weights of 16 bits are two signed bytes, w = 256*high + low, and a sum is 256 times the sum of the high ones plus that of the low
// ones, exact whatever the order. A unit of a window is three rows of the kernel: 7 columns of 3 rows of 3 channels are 63 bytes,
// which lie side by side where three rows of the image are stored column by column. The window of the next output begins 18 bytes
// later, so that a tile of sixteen windows is one load; nothing is copied out. The last of the three units has one row, and
// weights of 0 for two more.
//
// Four tiles of sums, of 32 outputs and 16 filters, high and low, grow together, and while the matrix unit works on them, the
// vector units take the maxima of those before. Low sums begin with the filters' part of the mean where a tile has one border case.
// Panels of 16 filters are [unit][high, low][16 rows][16 filters][4 bytes].

namespace {

constexpr int kStemTap = 9;  // bytes of a column
constexpr int kStemGroup = 7;  // columns that one permutation makes
constexpr int kStemSums = kTilePlaces * kTilePlaces;  // of a tile

struct StemOrder {
    alignas(64) uint8_t from[64] = {};
    constexpr StemOrder() {
        for (int i = 0; i < kStemGroup * kStemTap; i++) from[i] = (uint8_t)(i % kStemTap / 3 * 32 + i / kStemTap * 3 + i % 3);
    }
};
constexpr StemOrder kStemOrder;
alignas(64) constexpr int32_t kNoSums[kTilePlaces] = {};

// Three rows of the padded image from `row` on, column by column.
void put_stem_columns(const Conv &k, const uint8_t *in, int row, uint8_t *to) {
    const int wide = 3 * k.w, run = 3 * kStemGroup, columns = 2 * (k.ow - 1) + 7;
    const uint8_t *from[3];
    uint32_t inside[3];
    for (int r = 0; r < 3; r++) {
        inside[r] = row + r >= 0 && row + r < k.h ? ~0u : 0u;
        from[r] = in + (inside[r] ? (size_t)(row + r) * (size_t)wide : 0);
    }
    const __m512i order = _mm512_load_si512(kStemOrder.from);
    int first = -3 * k.pw;
    for (int column = 0; column < columns; column += kStemGroup, first += run, to += kStemGroup * kStemTap) {
        uint32_t lanes = (1u << run) - 1;
        if (first < 0) lanes &= first > -run ? ~0u << -first : 0u;
        if (first + run > wide) lanes &= first < wide ? (1u << (wide - first)) - 1 : 0u;
        const __m256i upper = _mm256_maskz_loadu_epi8(lanes & inside[0], from[0] + first);
        const __m256i middle = _mm256_maskz_loadu_epi8(lanes & inside[1], from[1] + first);
        const __m256i lower = _mm256_maskz_loadu_epi8(lanes & inside[2], from[2] + first);
        const __m512i both = _mm512_inserti64x4(_mm512_castsi256_si512(upper), middle, 1);
        _mm512_storeu_si512(to, _mm512_permutex2var_epi8(both, order, _mm512_castsi256_si512(lower)));
    }
}

// Sixteen outputs of a row from column x on.
struct StemTile {
    const uint8_t *windows;
    const int32_t *begin, *border;  // of filter 0: what all columns begin with, or the row's cases where columns differ
    int32_t *line;                  // of filter 0: the maximum of the first pair
    int x, pairs;
};

// Maxima along a row of up to two tiles of sums and 16 filters, a few pairs at a time.
struct Maxima {
    const StemTile *tile = nullptr, *end = nullptr;
    const int32_t *sums = nullptr;
    const uint16_t *cases = nullptr;
    size_t pitch = 0, step = 0;
    int c = 0, width = 0, pair = 0;
    __m512i toward = zero_ints(), last = zero_ints();

    __attribute__((always_inline)) void begin(const Conv &k, const Epilogue &e, const StemTile *tiles, int count, int channel, const int32_t *made,
                                              const int32_t *carried) {
        tile = tiles, end = tiles + count, sums = made, cases = k.col_case, c = channel, width = k.ow;
        pitch = (size_t)k.channels_padded, step = (size_t)e.out_stride;
        toward = load_ints(e.toward + c), last = load_ints(carried);
        enter();
    }
    __attribute__((always_inline)) void enter() {
        pair = 0;
        if (tile->x == 0) last = _mm512_set1_epi32(INT32_MIN);  // no column before it
    }
    __attribute__((always_inline)) void one() {
        const int x = tile->x + 2 * pair;
        const int32_t *from = sums + 2 * pair * kTilePlaces;
        const auto whole = [&](int column) __attribute__((always_inline)) {
            const int32_t *high = from + column * kTilePlaces;
            return add_ints(_mm512_slli_epi32(load_ints(high), 8), high + kStemSums);
        };
        const bool two = x + 1 < width;
        __m512i left = whole(0), right = whole(1);
        if (tile->border) {
            left = add_ints(left, tile->border + cases[x] * pitch + c);
            right = add_ints(right, tile->border + cases[two ? x + 1 : x] * pitch + c);
        }
        right = xor_ints(right, toward);
        __m512i most = max_ints(xor_ints(left, toward), last);
        last = right;
        if (two) most = max_ints(most, right);
        store_ints(tile->line + (size_t)pair * step + c, most);
        if (++pair == tile->pairs) {
            tile++, sums += 2 * kStemSums;
            if (tile != end) enter();
        }
    }
    __attribute__((always_inline)) void some(int n) {
        for (; n > 0 && tile != end; n--) one();
    }
    // All that is left; the last column goes to `carried`.
    __attribute__((always_inline)) void rest(int32_t *carried) {
        while (tile != end) one();
        store_ints(carried, last);
    }
};

// Sums of kPixels tiles of outputs, one or two, and 16 filters.
template <int kPixels, class Aside>
__attribute__((always_inline)) inline void sum_stem(const StemTile *tiles, long unit_bytes, const int8_t *panel, int c, int32_t *sums, Aside &&aside) {
    each<kPixels>([&](auto p) __attribute__((always_inline)) {
        zero_tile<2 * p>();
        load_tile<2 * p + 1>(tiles[p].begin ? tiles[p].begin + c : kNoSums, 0);
    });
    const uint8_t *at[2] = {tiles[0].windows, tiles[kPixels - 1].windows};
#pragma GCC unroll 3
    for (int unit = 0; unit < kStemUnits; unit++, panel += 2 * kTileBytes) {
        load_tile<6>(panel, 64), load_tile<7>(panel + kTileBytes, 64);
        each<kPixels>([&](auto p) __attribute__((always_inline)) {
            load_tile<4 + p>(at[p] + unit * unit_bytes, 2 * kStemTap);
            multiply_tiles<2 * p, 4 + p, 6>(), multiply_tiles<2 * p + 1, 4 + p, 7>();
        });
        aside();
    }
    each<2 * kPixels>([&](auto t) __attribute__((always_inline)) { store_tile<t>(sums + t * kStemSums, 64); });
}

// Rows y0..y1 of the stem: line y of `e.sums`, [pair][out_stride], gets the maxima along the row.
void conv_pooled_tiles(const Conv &k, const Epilogue &e, const void *in, int y0, int y1, char *scratch, Prepared *prepared) {
    if (!k.tiles) return avx512_kernels()->conv_pooled(k, e, in, y0, y1, scratch, prepared);
    const int across = stem_tiles_across(k), filters = (e.channels + kTilePlaces - 1) / kTilePlaces, pairs = (k.ow + 1) / 2;
    const size_t unit_bytes = stem_unit_bytes(k);
    const int8_t *panels = (const int8_t *)k.weights + (size_t)k.blocks_per_group * k.panel_bytes;
    int32_t *sums = (int32_t *)round_up((size_t)scratch, kLine), *carried = sums + 2 * 4 * kStemSums;
    uint8_t *columns = (uint8_t *)(carried + (size_t)k.channels_padded);
    StemTile tiles[2][2];
    Maxima maxima;
    int32_t *owner = carried;  // of the maxima's last column
    int turn = 0, buffer = 0;
    begin_tiles();
    for (int y = y0; y < y1; y += 2) {
        const int rows = y1 - y < 2 ? y1 - y : 2, count = rows * across;
        for (int i = 0; i < rows * kStemUnits; i++) {
            const int row = (y + i / kStemUnits) * k.sh - k.ph + i % kStemUnits * 3;
            put_stem_columns(k, (const uint8_t *)in, row, columns + (size_t)i * unit_bytes);
        }
        for (int first = 0; first < count; first += 2, turn ^= 1) {
            StemTile *job = tiles[turn];
            const int n = count - first < 2 ? count - first : 2;
            for (int i = 0; i < n; i++) {
                const int r = (first + i) / across, x = (first + i) % across * kTilePlaces;
                const int last = x + kTilePlaces < k.ow ? x + kTilePlaces - 1 : k.ow - 1;
                const int32_t *shift = k.shift + (size_t)k.row_case[y + r] * k.col_cases * k.channels_padded;
                const bool alike = k.col_case[x] == k.col_case[last];
                job[i].windows = columns + (size_t)r * kStemUnits * unit_bytes + (size_t)x * 2 * kStemTap;
                job[i].begin = alike ? shift + (size_t)k.col_case[x] * k.channels_padded : nullptr;
                job[i].border = alike ? nullptr : shift;
                job[i].line = e.sums + ((long)(y + r) * pairs + x / 2) * e.out_stride;
                job[i].x = x, job[i].pairs = (last - x) / 2 + 1;
            }
            for (int f = 0; f < filters; f++, buffer ^= 1) {
                int32_t *made = sums + buffer * 4 * kStemSums;
                const int8_t *panel = panels + (size_t)f * kStemUnits * 2 * kTileBytes;
                const auto aside = [&]() __attribute__((always_inline)) { maxima.some(6); };
                if (n == 2) sum_stem<2>(job, (long)unit_bytes, panel, f * kTilePlaces, made, aside);
                else sum_stem<1>(job, (long)unit_bytes, panel, f * kTilePlaces, made, aside);
                maxima.rest(owner);
                owner = carried + f * kTilePlaces;
                maxima.begin(k, e, job, n, f * kTilePlaces, made, owner);
            }
        }
    }
    maxima.rest(owner);
    end_tiles();
}

// weight [o][3][7][7].
void pack_stem(const Conv &k, const int16_t *weight, void *panels) {
    int8_t *tiles = (int8_t *)panels + (size_t)k.blocks_per_group * k.panel_bytes;
    __builtin_memset(tiles, 0, (size_t)k.blocks_per_group * stem_panel_bytes());
    for (int o = 0; o < k.o; o++)
        for (int i = 0; i < 3 * 49; i++) {
            const int channel = i / 49, row = i % 49 / 7, place = i % 7 * kStemTap + row % 3 * 3 + channel;
            const int16_t w = weight[(size_t)o * 3 * 49 + i];
            const int8_t low = (int8_t)(uint8_t)w, high = (int8_t)((w - low) / 256);
            int8_t *tile = tiles + ((size_t)(o / kTilePlaces) * kStemUnits + row / 3) * 2 * kTileBytes;
            const int at = place / 4 * 64 + o % kTilePlaces * 4 + place % 4;
            tile[at] = high, tile[(int)kTileBytes + at] = low;
        }
}

}  // namespace
