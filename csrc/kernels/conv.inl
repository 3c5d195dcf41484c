// One driver for every convolution: bits, floats and 8-bit images differ only in a trait `D` with
//   Unit, Result        what a prepared row is made of, and what a tile of results holds
//   kTile, kPair        base pointers a tile, and pixels a base pointer (2 where one look-up serves two pixels)
//   prepare(k, in, r, row, scratch)   row `r` of the padded image (may lie outside) -> units
//   dot(bases, n, segments, count, panel, result)   n base pointers (all kTile are readable) -> result[pixel][32]
//   kBlocks             bits: blocks of filters that dot can take together. With 2 it also takes across(k), the distance of
//                       two panels, the number of blocks (results: [block][kTile*kPair pixels][32]) and an Ahead
//   kLimits             bits: whether there is below(counts, limits), which compares 32 counts
//
// A band of output rows needs the rows y0*s - p ... of the image; they are brought into units once, with their
// padding, and then used by every block of 32 output channels. For an output pixel its window is, for each
// kernel row, one run of kw*units consecutive units (one a tap where dilated or grouped): the segments. No
// window is ever copied.

namespace {

// The words of a padded row of bits: [cols + stride + 1][groups][words]. A group's channels begin at a word.
inline const uint32_t *padded_words(const Conv &k, const uint32_t *in, int row, uint32_t *out) {
    const int pixel = k.groups * k.words;
    const int total = k.cols + k.sw + 1;
    const bool inside = row >= 0 && row < k.h;
    const uint32_t tail = k.fan % 32 ? (1u << k.fan % 32) - 1 : ~0u;
    for (int x = 0; x < total; x++) {
        uint32_t *to = out + (size_t)x * pixel;
        const int from = x - k.pw;
        if (inside && from >= 0 && from < k.w) {
            if (from == 0 && k.groups == 1) {  // the whole row at once
                __builtin_memcpy(to, in + (size_t)row * k.w * k.in_stride, (size_t)k.w * pixel * 4);
                x += k.w - 1;
                continue;
            }
            const uint32_t *bits = in + ((size_t)row * k.w + from) * k.in_stride;
            for (int g = 0; g < k.groups; g++)
                for (int j = 0; j < k.words; j++) {
                    const long at = (long)g * k.fan + j * 32;
                    const int shift = (int)(at % 32);
                    uint64_t pair = bits[at / 32];
                    if (shift && at / 32 + 1 < k.in_stride) pair |= (uint64_t)bits[at / 32 + 1] << 32;
                    to[g * k.words + j] = (uint32_t)(pair >> shift) & (j == k.words - 1 ? tail : ~0u);
                }
        } else {
            const bool ones = k.pad_value > 0 && x < k.cols;
            for (int g = 0; g < k.groups; g++)
                for (int j = 0; j < k.words; j++) to[g * k.words + j] = !ones ? 0u : j == k.words - 1 ? tail : ~0u;
        }
    }
    return out;
}

struct FloatDot {
    using Unit = float;
    using Result = float;
    static constexpr int kTile = kFloatTile, kPair = 1, kSlack = 16;
    static constexpr int kSmaller = kTile >= 12 ? kTile - 2 : kTile >= 6 ? kTile - 1 : kTile;  // tiles of few pixels
    static constexpr bool kBits = false;
    static void prepare(const Conv &k, const void *in, int row, float *out, char *) {
        const bool inside = row >= 0 && row < k.h;
        for (int x = 0; x < k.cols; x++) {
            float *to = out + (size_t)x * k.c;
            const int from = x - k.pw;
            if (inside && from >= 0 && from < k.w) {
                const float *pixel = (const float *)in + ((size_t)row * k.w + from) * k.in_stride;
                if (k.in_stride == k.c) {
                    __builtin_memcpy(to, pixel, (size_t)k.w * k.c * sizeof(float));
                    x += k.w - 1;
                } else {
                    __builtin_memcpy(to, pixel, (size_t)k.c * sizeof(float));
                }
            } else {
                __builtin_memset(to, 0, (size_t)k.c * sizeof(float));
            }
        }
    }
    // Panels of 2N channels: [kBlock/2N][unit][2N].
    template <int P>
    static void dot_pixels(const float *const *bases, const Segment *segments, int count, const float *w, float *result) {
        for (int half = 0; half < kBlock; half += 2 * N) {
            F sum[P][2];
            for (int i = 0; i < P; i++) sum[i][0] = sum[i][1] = zero();
            for (int s = 0; s < count; s++) {
                const float *p[P];
                for (int i = 0; i < P; i++) p[i] = bases[i] + segments[s].offset;
                const int length = segments[s].length;
                for (int u = 0; u < length; u++, w += 2 * N) {
                    const F w0 = load(w), w1 = load(w + N);
#pragma GCC unroll 16
                    for (int i = 0; i < P; i++) {
                        const F a = set1(p[i][u]);
                        sum[i][0] = fma(a, w0, sum[i][0]);
                        sum[i][1] = fma(a, w1, sum[i][1]);
                    }
                }
            }
            for (int i = 0; i < P; i++) {
                store(result + i * kBlock + half, sum[i][0]);
                store(result + i * kBlock + half + N, sum[i][1]);
            }
        }
    }
    // One pixel (a linear layer): twice the sums, so that the additions need not wait for each other.
    static void dot_one(const float *base, const Segment *segments, int count, const float *w, float *result) {
        for (int half = 0; half < kBlock; half += 2 * N) {
            F sum[4] = {zero(), zero(), zero(), zero()};
            for (int s = 0; s < count; s++) {
                const float *p = base + segments[s].offset;
                const int length = segments[s].length;
                int u = 0;
                for (; u + 2 <= length; u += 2, w += 4 * N) {
                    const F a = set1(p[u]), b = set1(p[u + 1]);
                    sum[0] = fma(a, load(w), sum[0]);
                    sum[1] = fma(a, load(w + N), sum[1]);
                    sum[2] = fma(b, load(w + 2 * N), sum[2]);
                    sum[3] = fma(b, load(w + 3 * N), sum[3]);
                }
                for (; u < length; u++, w += 2 * N) {
                    sum[0] = fma(set1(p[u]), load(w), sum[0]);
                    sum[1] = fma(set1(p[u]), load(w + N), sum[1]);
                }
            }
            store(result + half, add(sum[0], sum[2]));
            store(result + half + N, add(sum[1], sum[3]));
        }
    }
    static void dot(const float *const *bases, int n, const Segment *segments, int count, const void *w, float *result) {
        if (n == 1) return dot_one(bases[0], segments, count, (const float *)w, result);
        if (n <= kSmaller) return dot_pixels<kSmaller>(bases, segments, count, (const float *)w, result);
        dot_pixels<kTile>(bases, segments, count, (const float *)w, result);
    }
    // Pixels of a tile where there are so many: for 49 of them five tiles of ten compute 50, five of twelve 60.
    static int tile(int bases) {
        const int whole = (bases + kTile - 1) / kTile * kTile, smaller = (bases + kSmaller - 1) / kSmaller * kSmaller;
        return smaller < whole ? kSmaller : kTile;
    }
};

}  // namespace

#include "stem/image.inl"

namespace {

// What a tile asks of a convolution for each pixel. A copy: a pixel that is put down might change the original.
struct Rows {
    const uint16_t *row_case, *col_case;
    const float *base;
    const int32_t *shift;
    size_t col_cases, pitch;
    int ow;
    explicit Rows(const Conv &k)
        : row_case(k.row_case), col_case(k.col_case), base(k.base), shift(k.shift), col_cases((size_t)k.col_cases),
          pitch((size_t)k.channels_padded), ow(k.ow) {}
};

// The pixels of one tile: where each begins in the prepared rows, and where its result goes.
template <class D>
struct Tile {
    const typename D::Unit *bases[D::kTile];
    int pixels[D::kTile * D::kPair];
    const float *base[D::kTile * D::kPair];
    const int32_t *shift[D::kTile * D::kPair];
    int n = 0;
    Ahead ahead;

    void take(const Rows &k, const typename D::Unit *at, int y, int x, int second_y, int second_x) {
        bases[n] = at;
        put(k, n * D::kPair, y, x);
        if (D::kPair == 2) put(k, n * D::kPair + 1, second_y, second_x);
        n++;
    }
    void put(const Rows &k, int i, int y, int x) {
        const bool real = y >= 0;
        pixels[i] = real ? y * k.ow + x : -1;
        const size_t border = real ? ((size_t)k.row_case[y] * k.col_cases + k.col_case[x]) * k.pitch : 0;
        if (k.base) base[i] = k.base + border;
        if (k.shift) shift[i] = k.shift + border;
    }
};

template <class D>
constexpr int most_blocks() {
    if constexpr (D::kBits) return D::kBlocks;
    else return 1;
}

template <class D>
int tile_of(int bases) {
    if constexpr (!D::kBits && sizeof(typename D::Unit) == sizeof(float)) return D::tile(bases);
    else return D::kTile;
}

template <class D>
constexpr bool has_limits() {
    if constexpr (D::kBits) return D::kLimits;
    else return false;
}

// One block's counts of a tile; for a kernel that takes more, of `blocks` of them.
template <class D>
void bit_dot(const Conv &k, const typename D::Unit *const *bases, int n, const Segment *segments, int count, const char *panel,
             size_t stride, int blocks, typename D::Result *result, Ahead ahead) {
    if constexpr (D::kBlocks == 2) D::dot(bases, n, segments, count, D::across(k), panel, stride, blocks, result, ahead);
    else D::dot(bases, n, segments, count, panel, result);
}

// Calls `use(source, b)` with the tile's results of each of `blocks` blocks as something that gives floats.
template <class D, class Use>
void tile_sums(const Conv &k, Tile<D> &tile, int group, int block, int blocks, char *memory, Use use) {
    auto *result = (typename D::Result *)memory;
    const char *panel = (const char *)k.weights + (size_t)(group * k.blocks_per_group + block) * k.panel_bytes;
    const typename D::Unit *bases[D::kTile];
    for (int i = 0; i < D::kTile; i++) bases[i] = tile.bases[i < tile.n ? i : 0] + (size_t)group * k.units;
    if constexpr (D::kBits) {
        if (k.total_units <= D::kMostUnits) {
            bit_dot<D>(k, bases, tile.n, k.segments, k.segment_count, panel, k.panel_bytes, blocks, result, tile.ahead);
            for (int b = 0; b < blocks; b++, result += D::kTile * D::kPair * kBlock)
                if constexpr (sizeof(typename D::Result) == 2) use(BaseMinus{result, tile.base}, block + b);
                else use(WideBaseMinus{result, tile.base}, block + b);
            return;
        }
        // More inputs than a 16-bit count holds: sum pieces of the window in 32 bits.
        auto *wide = (int32_t *)(memory + kMaxTile * kBlock * 4);
        const int pixels = tile.n * D::kPair;
        for (int b = 0; b < blocks; b++) {
            const char *from = panel + (size_t)b * k.panel_bytes;
            for (int i = 0; i < pixels * kBlock; i++) wide[i] = 0;
            for (int s = 0; s < k.segment_count;) {
                long units = 0;
                int end = s;
                while (end < k.segment_count && units + k.segments[end].length <= D::kMostUnits)
                    units += k.segments[end++].length;
                bit_dot<D>(k, bases, tile.n, k.segments + s, end - s, from, 0, 1, result, Ahead());
                for (int i = 0; i < pixels * kBlock; i++) wide[i] += result[i];
                from += (size_t)units * D::kWeightBytes;
                s = end;
            }
            use(WideBaseMinus{wide, tile.base}, block + b);
        }
    } else {
        // The order of a pixel's sum depends on the layer alone: a last tile of one pixel is summed like the others.
        const int n = tile.n > 1 || k.oh * k.ow == 1 ? tile.n : 2;
        D::dot(bases, n, k.segments, k.segment_count, panel, result);
        if constexpr (sizeof(typename D::Unit) == sizeof(float)) use(Biased{result, k.bias}, block);
        else use(Dequantised{result, tile.shift, k.scale, k.bias}, block);
    }
}

// Nothing but the next layer's bits is wanted: a comparison of the counts themselves (see engine/limits.cpp).
template <class D>
void tile_signs(const Conv &k, const Epilogue &e, const Tile<D> &tile, int block, const typename D::Result *counts) {
    const uint32_t turn = e.turn[block];
    uint8_t *to = e.bits + (size_t)block * kBlock / 8;
    for (int i = 0; i < tile.n * D::kPair; i++) {
        if (tile.pixels[i] < 0) continue;
        const uint32_t word = turn ^ D::below(counts + i * kBlock, e.limits + (tile.base[i] - k.base) + block * kBlock);
        __builtin_memcpy(to + (size_t)tile.pixels[i] * e.bits_stride, &word, 4);
    }
}

template <class D>
void tile_done(const Conv &k, const Epilogue &e, Tile<D> &tile, int block, int blocks, char *memory) {
    const int pixels = tile.n * D::kPair;
    if (k.groups == 1) {
        tile_sums(k, tile, 0, block, blocks, memory, [&](const auto &source, int b) {
            if constexpr (has_limits<D>())
                if constexpr (sizeof(*source.counts) == sizeof(typename D::Result))
                    if (e.limits) return tile_signs(k, e, tile, b, source.counts);
            finish_tile(e, source, tile.pixels, pixels, b * kBlock);
        });
    } else {  // groups need not begin at a block: gather all channels, then finish
        const int stride = (int)round_up(k.o, kBlock);
        float *all = (float *)(memory + (size_t)kMaxTile * kBlock * 4 * 3);
        for (int g = 0; g < k.groups; g++)
            for (int b = 0; b < k.blocks_per_group; b++)
                tile_sums(k, tile, g, b, 1, memory, [&](const auto &source, int) {
                    const int padded = (g * k.blocks_per_group + b) * kBlock;
                    const int left = k.og - b * kBlock;
                    for (int i = 0; i < pixels; i++)
                        for (int l = 0; l < (left < kBlock ? left : kBlock); l++)
                            all[(size_t)i * stride + g * k.og + b * kBlock + l] = source.one(i, l, padded + l);
                });
        for (int c0 = 0; c0 < k.o; c0 += kBlock) finish_tile(e, Plain{all, stride}, tile.pixels, pixels, c0);
    }
    tile.n = 0;
}

// Where one look-up serves two pixels and rows have an odd number of them, the last pixel of a row has no partner
// beside it: it is paired with the one below. `below` has the layout of `rows`; only the last window is written.
template <class D>
void pair_below(const Conv &k, const typename D::Unit *rows, int count, typename D::Unit *below) {
    const size_t first = (size_t)(k.ow - 1) * k.sw * k.groups * k.units;
    const size_t length = ((size_t)(k.kw - 1) * k.dw + 1) * k.groups * k.units;
    for (int r = 0; r + k.sh < count; r++) {
        const typename D::Unit *upper = rows + (size_t)r * k.row_units + first;
        D::join(upper, upper + (size_t)k.sh * k.row_units, length, below + (size_t)r * k.row_units + first);
    }
}

// The rows of the image that output rows top..bottom need. False where all of them lay ready.
template <class D>
bool bring_rows(const Conv &k, const void *in, int top, int bottom, typename D::Unit *rows, char *spare, Prepared *prepared) {
    const int count = (bottom - top - 1) * k.sh + (k.kh - 1) * k.dh + 1;
    const int first = top * k.sh - k.ph, gone = prepared ? first - prepared->first : 0;
    int made = prepared && gone >= 0 && gone < prepared->rows ? prepared->rows - gone : 0;
    if (gone == 0 && made >= count) return false;
    if (made > count) made = count;
    const size_t row = (size_t)k.row_units;
    if (made && gone) __builtin_memmove(rows, rows + gone * row, made * row * sizeof(typename D::Unit));
    for (int r = made; r < count; r++) D::prepare(k, in, first + r, rows + r * row, spare);
    if (prepared) *prepared = Prepared{first, count};
    return true;
}

template <class D>
void conv_rows(const Conv &k, const Epilogue &e, const void *in, int y0, int y1, int b0, int b1, char *scratch,
               Prepared *prepared) {
    using Unit = typename D::Unit;
    scratch = (char *)round_up((size_t)scratch, kLine);
    char *memory = scratch;
    Unit *rows = (Unit *)(scratch + tile_bytes(k));
    const size_t band_rows = (size_t)(k.band - 1) * k.sh + (size_t)(k.kh - 1) * k.dh + 1;
    char *spare = (char *)round_up((size_t)(rows + band_rows * k.row_units + D::kSlack), kLine);
    Unit *below = nullptr;
    if constexpr (D::kBits && D::kPair == 2)
        if (k.ow % 2) below = (Unit *)(spare + padded_row_bytes(k));
    if (k.groups > 1) b0 = 0, b1 = 1;
    for (int top = y0; top < y1; top += k.band) {
        const int bottom = top + k.band < y1 ? top + k.band : y1;
        const int count = (bottom - top - 1) * k.sh + (k.kh - 1) * k.dh + 1;
        const bool brought = bring_rows<D>(k, in, top, bottom, rows, spare, prepared);
        if constexpr (D::kBits && D::kPair == 2)
            if (below && brought) pair_below<D>(k, rows, count, below);
        for (int block = b0, blocks; block < b1; block += blocks) {
            blocks = b1 - block < most_blocks<D>() ? b1 - block : most_blocks<D>();
            Tile<D> tile;
            const Rows places(k);
            const int height = bottom - top, wide = k.ow;
            const size_t step = (size_t)k.sw * k.groups * k.units;
            const int bases = below ? height * (k.ow / 2) + (height + 1) / 2 : height * ((k.ow + D::kPair - 1) / D::kPair);
            const int most = tile_of<D>(bases), tiles = (bases + most - 1) / most;
            const char *next = (const char *)k.weights + (size_t)(block + blocks) * k.panel_bytes;
            if (k.groups == 1 && block + 2 * blocks <= k.blocks_per_group) tile.ahead = Ahead{next, tiles};
            for (int y = top; y < bottom; y++) {
                const Unit *row = rows + (size_t)(y - top) * k.sh * k.row_units;
                for (int x = 0; x < wide; x += D::kPair) {
                    const Unit *at = row + (size_t)x * step;
                    if (x + 1 < wide || !below) {
                        tile.take(places, at, y, x, x + 1 < wide ? y : -1, x + 1);
                    } else {
                        if ((y - top) % 2) continue;  // taken with the pixel above
                        const bool pair = y + 1 < bottom;
                        tile.take(places, pair ? below + (at - rows) : at, y, x, pair ? y + 1 : -1, x);
                    }
                    if (tile.n == most) {
                        tile_done(k, e, tile, block, blocks, memory);
                        if (tile.ahead.at) tile.ahead.at += blocks * k.panel_bytes / tiles;
                    }
                }
            }
            if (tile.n) tile_done(k, e, tile, block, blocks, memory);
        }
    }
}

// Weight panels. Bits come as [o][kh*kw][ceil(fan/8)] bytes; `nibble` and friends give what a lane needs.
inline unsigned weight_bits(const Conv &k, const uint8_t *weight, int o, int tap, int first, int count) {
    const int bytes = (k.fan + 7) / 8;
    unsigned value = 0;
    for (int i = 0; i < count; i += 8) {
        const int at = (first + i) / 8;
        if (at < bytes) value |= (unsigned)weight[((size_t)o * k.kh * k.kw + tap) * bytes + at] << i;
    }
    return count < 8 ? (value >> first % 8) & ((1u << count) - 1) : value;
}

// The other way; a unit's first channel is a multiple of 4.
inline void put_bits(const Conv &k, uint8_t *weight, int o, int tap, int first, int count, unsigned value) {
    const int bytes = (k.fan + 7) / 8;
    uint8_t *to = weight + ((size_t)o * k.kh * k.kw + tap) * bytes;
    for (int i = 0; i < count && (first + i) / 8 < bytes; i += 8) {
        uint8_t &byte = to[(first + i) / 8];
        byte = (uint8_t)(first % 8 ? (byte & 15) | value << 4 : value >> i);
    }
}

// Calls put(panel, o, lane, tap, j) for every unit j of every tap of every real output channel.
template <class Put>
void each_unit(const Conv &k, void *panels, int units, Put put) {
    for (int o = 0; o < k.o; o++) {
        const int group = o / k.og, within = o % k.og;
        char *panel = (char *)panels + (size_t)(group * k.blocks_per_group + within / kBlock) * k.panel_bytes;
        for (int tap = 0; tap < k.kh * k.kw; tap++)
            for (int j = 0; j < units; j++) put(panel, o, within % kBlock, tap, j);
    }
}

template <class Put>
void each_weight(const Conv &k, void *panels, int units, Put put) {
    __builtin_memset(panels, 0, (size_t)k.groups * k.blocks_per_group * k.panel_bytes);
    each_unit(k, panels, units, put);
}

// Bits that lie unit by unit: place(panel, lane, tap, j) is where a unit of `count` bits is.
template <class Place>
void move_in(const Conv &k, const uint8_t *weight, void *panels, int count, Place place) {
    each_weight(k, panels, k.units, [&](char *panel, int o, int lane, int tap, int j) {
        place(panel, lane, tap, j) = weight_bits(k, weight, o, tap, j * count, count);
    });
}
template <class Place>
void move_back(const Conv &k, const void *panels, uint8_t *weight, int count, Place place) {
    each_unit(k, (void *)panels, k.units, [&](char *panel, int o, int lane, int tap, int j) {
        put_bits(k, weight, o, tap, j * count, count, place(panel, lane, tap, j));
    });
}

void pack_float(const Conv &k, const float *weight, void *panels) {  // weight [o][fan][kh*kw]
    const int taps = k.kh * k.kw;
    each_weight(k, panels, k.fan, [&](char *panel, int o, int lane, int tap, int j) {
        const size_t unit = (size_t)tap * k.fan + j;
        const size_t half = lane / (2 * N), at = lane % (2 * N);
        ((float *)panel)[(half * taps * k.fan + unit) * 2 * N + at] = weight[((size_t)o * k.fan + j) * taps + tap];
    });
}

void pack_image(const Conv &k, const int16_t *weight, void *panels) {  // rounded up to pairs a kernel row
    const int taps = k.kh * k.kw, run = (k.kw * k.fan + 1) / 2 * 2;
    each_weight(k, panels, k.fan, [&](char *panel, int o, int lane, int tap, int j) {
        const size_t unit = (size_t)(tap / k.kw) * run + (tap % k.kw) * k.fan + j;
        const size_t half = lane / (2 * N), at = lane % (2 * N);
        const size_t pair = half * (run / 2) * k.kh + unit / 2;
        ((int16_t *)panel)[(pair * 2 * N + at) * 2 + unit % 2] = weight[((size_t)o * k.fan + j) * taps + tap];
    });
}

}  // namespace
