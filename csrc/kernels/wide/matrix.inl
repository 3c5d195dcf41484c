// Binary convolutions by a matrix unit: sums of products of bytes, 16,384 at a time.
//
// With activations a of 0 and 1 and weights 1 - 2*w, of +1 and -1, the differing bits are
//     sum(a ^ w) = sum(w) + sum(a*(1 - 2*w)),
// so a tile of sums begins with the filters' ones (a load of stride 0 gives all its rows the same), and ends as the counts
// that every other kernel makes: all that follows is the same.
//
// Weights stay bits in memory: as bytes they would be read from a far cache at every call. A block of 32 filters is made bytes
// while the first pixels use it, three tiles ahead, and serves all pixels of a band; where these pixels are all there are,
// the bytes go through a ring that stays in the first-level cache. While the matrix unit works on some pixels, the vector
// units finish those before them: after each step of sums, a few pixels.
//
// Panels of a block are [half of the 32 filters][unit][16 rows][64 bits], bit 4*n + i of row r for filter n and channel
// 4*r + i, then the ones of each filter.

namespace {

constexpr size_t kTileBytes = 1024;
constexpr int kTileWords = 16;  // of 64 bits
constexpr int kTilesAhead = 3;
constexpr int kPixelsAhead = 8;  // whose shortcuts and outputs are fetched

struct Band {
    uint8_t *planes;
    int8_t *panel;
    int32_t *counts[2];
};

inline Band carve(const Conv &k, char *scratch) {
    Band band;
    scratch = (char *)round_up((size_t)scratch, kLine);
    band.planes = (uint8_t *)scratch, scratch += plane_bytes(k);
    band.panel = (int8_t *)scratch, scratch += plane_panel_bytes(k);
    for (int32_t *&counts : band.counts) counts = (int32_t *)scratch, scratch += plane_counts_bytes();
    return band;
}

// 64 channels, as bytes 0 and 1.
__attribute__((always_inline)) inline void put_unit(uint8_t *to, uint64_t bits) {
    _mm512_store_si512(to, _mm512_maskz_mov_epi8((__mmask64)bits, _mm512_set1_epi8(1)));
}

// `count` pixels of a plane's row from the image's, of which each `step`th is taken.
void put_pixels(const Conv &k, const uint32_t *from, int step, int count, uint8_t *to) {
    if (step == 1 && k.in_stride == 2 * k.units) {  // one run
        const uint64_t *pairs = (const uint64_t *)from;
        for (size_t i = 0; i < (size_t)count * k.units; i++) put_unit(to + i * kPlaneUnit, pairs[i]);
        return;
    }
    const int whole = k.words / 2, units = k.units;
    const size_t apart = (size_t)step * k.in_stride;
    for (int x = 0; x < count; x++, from += apart) {
        for (int u = 0; u < whole; u++, to += kPlaneUnit) {
            uint64_t pair;
            __builtin_memcpy(&pair, from + 2 * u, 8);
            put_unit(to, pair);
        }
        if (whole < units) put_unit(to, from[2 * whole]), to += kPlaneUnit;
    }
}

void put_border(const Conv &k, int count, uint8_t *to) {
    for (int x = 0; x < count; x++)
        for (int u = 0; u < k.units; u++, to += kPlaneUnit) {
            const int left = k.fan - u * kPlaneUnit;
            put_unit(to, k.pad_value <= 0 ? 0 : left >= kPlaneUnit ? ~0ull : (1ull << left) - 1);
        }
}

// One row of the padded image, which may lie outside the image, into the planes of its remainder.
void put_row(const Conv &k, const uint32_t *in, int row, int place, uint8_t *planes) {
    if (place % k.sh >= planes_down(k)) return;
    const bool inside = row >= 0 && row < k.h;
    for (int phase = 0; phase < planes_across(k); phase++) {
        uint8_t *to = planes + plane_offset(k, place, phase) * kPlaneUnit;
        const int count = (k.cols - phase + k.sw - 1) / k.sw;
        const auto reaching = [&](int column) {  // places of this phase before a column
            const int before = column - phase <= 0 ? 0 : (column - phase + k.sw - 1) / k.sw;
            return before < count ? before : count;
        };
        const int first = inside ? reaching(k.pw) : count, last = inside ? reaching(k.pw + k.w) : count;
        const size_t pixel = (size_t)k.units * kPlaneUnit;
        put_border(k, first, to);
        if (last > first) {
            const int column = first * k.sw + phase - k.pw;
            put_pixels(k, in + ((size_t)row * k.w + column) * k.in_stride, k.sw, last - first, to + first * pixel);
        }
        put_border(k, count - last, to + last * pixel);
    }
}

void put_band(const Conv &k, const uint32_t *in, int top, int bottom, const Band &band, Prepared *prepared) {
    const int count = (bottom - top - 1) * k.sh + (k.kh - 1) * k.dh + 1, first = top * k.sh - k.ph;
    if (!prepared || prepared->first != first || prepared->rows < count)
        for (int r = 0; r < count; r++) put_row(k, in, first + r, r, band.planes);
    if (prepared) *prepared = Prepared{first, count};
}

// What follows a tile, of the lines that networks are full of: a comparison of counts, is_usual, or signs of the dot
// product times a spatial factor. `Any` is every other line.
enum class Ending { Any, Limits, Usual, Signs };

inline Ending ending_of(const Epilogue &e) {
    if (e.limits) return Ending::Limits;
    if (is_usual(e)) return Ending::Usual;
    const bool plain = e.fused && e.map && !e.mult && e.act == Act::None && tail_of(e) == Tail::Bits;
    return plain && e.channels % kBlock == 0 ? Ending::Signs : Ending::Any;
}

// The results of a job: pixels first..last of a band that begins with row `top`; `counts` are those of place 0.
struct Job {
    int top, first, last;
    const int32_t *counts;
};

// The pixels of one job, finished a few at a time; what belongs to the filters stays in registers.
template <Ending kEnding>
struct Finish {
    F mult[2], shift[2], slope[2], flip[2], threshold[2];
    const int32_t *counts;
    const float *map, *residual, *base;  // base and limits: of the first case of this row
    const int16_t *limits;
    float *out;
    uint8_t *bits;
    const uint16_t *row_case, *col_case;
    size_t residual_step, step, bits_step, pitch, row_pitch, gap;
    uint32_t turn;
    int x, ow, left = 0, share;  // share: pixels after each step
    const float *bases;
    const int16_t *all_limits;

    __attribute__((always_inline)) void begin(const Conv &k, const Epilogue &e, int block, const Job &job, int steps) {
        const int c = block * kBlock, row = job.first / k.ow;
        left = job.last - job.first, share = (left + steps - 1) / steps;
        ow = k.ow, x = job.first % ow, gap = (size_t)(plane_columns(k) - ow) * kBlock;
        pitch = (size_t)k.channels_padded, row_pitch = pitch * (size_t)k.col_cases;
        row_case = k.row_case + job.top + row, col_case = k.col_case;
        const size_t pixel = (size_t)job.top * ow + job.first;
        counts = job.counts + ((size_t)row * plane_columns(k) + x) * kBlock;
        bits_step = (size_t)e.bits_stride, bits = e.bits + c / 8 + pixel * bits_step;
        bases = k.base + c;
        if (kEnding == Ending::Limits) {
            all_limits = e.limits + c, turn = e.turn[block], begin_row();
            return;
        }
        map = e.map + pixel, begin_row();
        for (int j = 0; j < 2; j++) {
            flip[j] = load((const float *)e.flip + c + j * N), threshold[j] = load(e.threshold + c + j * N);
            if (kEnding == Ending::Signs) continue;
            mult[j] = load(e.mult + c + j * N), shift[j] = load(e.add + c + j * N), slope[j] = load(e.slope + c + j * N);
        }
        if (kEnding == Ending::Signs) return;
        residual_step = (size_t)e.residual_stride, residual = e.residual + c + pixel * residual_step;
        step = (size_t)e.out_stride, out = e.out + c + pixel * step;
    }
    __attribute__((always_inline)) void begin_row() {
        if (!left) return;
        if (kEnding == Ending::Limits) limits = all_limits + *row_case++ * row_pitch;
        else base = bases + *row_case++ * row_pitch;
    }

    __attribute__((always_inline)) void one() {
        const size_t border = col_case[x] * pitch;
        if (kEnding == Ending::Usual) {
            const char *from = (const char *)residual + kPixelsAhead * residual_step * 4;
            const char *to = (const char *)out + kPixelsAhead * step * 4;
            __builtin_prefetch(from), __builtin_prefetch(from + kLine), __builtin_prefetch(to, 1), __builtin_prefetch(to + kLine, 1);
        }
        uint32_t word = 0;
#pragma GCC unroll 2
        for (int j = 0; j < 2; j++) {
            if (kEnding == Ending::Limits) {
                const __m256i limit = _mm256_loadu_si256((const __m256i *)(limits + border + j * N));
                word |= (uint32_t)_mm512_cmplt_epi32_mask(load_ints(counts + j * N), _mm512_cvtepi16_epi32(limit)) << j * N;
                continue;
            }
            F v = mul(from_counts32(base + border + j * N, counts + j * N), set1(map[0]));
            if (kEnding == Ending::Usual) {
                v = add(prelu(multiply_add(v, mult[j], shift[j]), slope[j]), load(residual + j * N));
                store(out + j * N, v);
            }
            word |= greater(xor_sign(v, flip[j]), threshold[j]) << j * N;
        }
        if (kEnding == Ending::Limits) word ^= turn;
        __builtin_memcpy(bits, &word, 4);
        counts += kBlock, bits += bits_step, left--;
        if (kEnding != Ending::Limits) map++;
        if (kEnding == Ending::Usual) residual += residual_step, out += step;
        if (++x == ow) x = 0, counts += gap, begin_row();
    }
    __attribute__((always_inline)) void some() {
        for (int n = share < left ? share : left; n > 0; n--) one();
    }
    __attribute__((always_inline)) void rest() {
        while (left) one();
    }
};

template <>
struct Finish<Ending::Any> {
    void begin(const Conv &, const Epilogue &, int, const Job &, int) {}
    void some() {}
    void rest() {}
};

// Any line, for all pixels of a job.
void finish_any(const Conv &k, const Epilogue &e, int block, const Job &job) {
    const int columns = plane_columns(k);
    for (int at = job.first, n; at < job.last; at += n) {  // pixels of one row
        int pixels[kMaxTile];
        const float *base[kMaxTile];
        const int row = at / k.ow, x = at % k.ow, y = job.top + row;
        const int most = k.ow - x < kMaxTile ? k.ow - x : kMaxTile;
        n = job.last - at < most ? job.last - at : most;
        for (int i = 0; i < n; i++) {
            pixels[i] = y * k.ow + x + i;
            base[i] = k.base + ((size_t)k.row_case[y] * k.col_cases + k.col_case[x + i]) * k.channels_padded;
        }
        finish_tile(e, WideBaseMinus{job.counts + ((size_t)row * columns + x) * kBlock, base}, pixels, n, block * kBlock);
    }
}

// 16 filters' weights of 64 channels: bits to +1 and -1.
__attribute__((always_inline)) inline void put_weights(const uint64_t *bits, int8_t *to) {
    const __m512i plus = _mm512_set1_epi8(1), minus = _mm512_set1_epi8(-1);
#pragma GCC unroll 16
    for (int r = 0; r < kTileWords; r++) _mm512_store_si512(to + r * 64, _mm512_mask_blend_epi8(_load_mask64((__mmask64 *)(bits + r)), plus, minus));
}

template <class Do, int... kI>
__attribute__((always_inline)) inline void each_of(std::integer_sequence<int, kI...>, Do &&run) {
    (run(std::integral_constant<int, kI>{}), ...);
}
template <int kCount, class Do>
__attribute__((always_inline)) inline void each(Do &&run) {
    each_of(std::make_integer_sequence<int, kCount>{}, run);
}

// Sums of kPixels tiles of pixels, at most four, and one tile of filters: half of a block. `mask` is what the number of a tile
// of weights has in common with its place in the panel: all bits, or those of a ring.
template <int kPixels, bool kExpand, class Aside>
__attribute__((always_inline)) inline void sum_tiles(const Conv &k, const uint8_t *at, const char *weights, int8_t *panel, long mask,
                                                     int half, int32_t *counts, Aside &&aside) {
    const long units = k.total_units, pixel = (long)k.units * kPlaneUnit;
    const uint64_t *bits = (const uint64_t *)weights + half * units * kTileWords;
    const int32_t *ones = (const int32_t *)(weights + 2 * units * kTileWords * 8) + half * kTilePlaces;
    const auto place = [&](long unit) __attribute__((always_inline)) {
        return panel + ((half * units + unit) & mask) * (long)kTileBytes;
    };
    const auto expand = [&](long unit) __attribute__((always_inline)) { put_weights(bits + unit * kTileWords, place(unit)); };
    if (kExpand)
        for (long unit = 0; unit < kTilesAhead && unit < units; unit++) expand(unit);
    each<kPixels>([&](auto p) __attribute__((always_inline)) { load_tile<p>(ones, 0); });
    long unit = 0;
    for (int s = 0; s < k.segment_count; s++) {
        const uint8_t *a = at + (size_t)k.segments[s].offset * kPlaneUnit;
        for (const long last = unit + k.segments[s].length; unit < last; unit++, a += kPlaneUnit) {
            load_tile<4>(place(unit), 64);
            each<kPixels>([&](auto p) __attribute__((always_inline)) {
                load_tile<6 + p % 2>(a + p * kTilePlaces * pixel, pixel);
                multiply_tiles<p, 6 + p % 2, 4>();
            });
            if (kExpand && unit + kTilesAhead < units) expand(unit + kTilesAhead);
            aside();
        }
    }
    each<kPixels>([&](auto p) __attribute__((always_inline)) {
        store_tile<p>(counts + p * kTilePlaces * kBlock + half * kTilePlaces, kBlock * 4);
    });
}

// A job: kPixels tiles of pixels and the 32 filters of a block.
template <int kPixels, class Aside>
__attribute__((always_inline)) inline void sum_block(const Conv &k, const uint8_t *at, const char *weights, int8_t *panel, long mask,
                                                     bool expand, int32_t *counts, Aside &&aside) {
    for (int half = 0; half < 2; half++)
        if (expand) sum_tiles<kPixels, true>(k, at, weights, panel, mask, half, counts, aside);
        else sum_tiles<kPixels, false>(k, at, weights, panel, mask, half, counts, aside);
}

template <Ending kEnding>
void conv_band(const Conv &k, const Epilogue &e, const Band &band, int top, int rows, int b0, int b1) {
    const int columns = plane_columns(k), tiles = plane_tiles(k, rows), jobs = plane_jobs(k, rows), steps = 2 * (int)k.total_units;
    const long mask = jobs == 1 ? kRing - 1 : -1;
    const auto pixels_before = [&](int place) {
        const int row = place / columns, x = place % columns;
        return row < rows ? row * k.ow + (x < k.ow ? x : k.ow) : rows * k.ow;
    };
    Finish<kEnding> finish;
    int turn = 0;
    for (int block = b0; block < b1; block++) {
        const char *weights = (const char *)k.weights + (size_t)block * k.panel_bytes;
        for (int number = 0, tile = 0, count; number < jobs; number++, tile += count, turn ^= 1) {
            count = tiles / jobs + (number < tiles % jobs);
            const int place = tile * kTilePlaces;
            const uint8_t *at = band.planes + (size_t)place * k.units * kPlaneUnit;
            int32_t *counts = band.counts[turn];
            const bool expand = number == 0;
            const auto aside = [&]() __attribute__((always_inline)) { finish.some(); };
            switch (count) {
                case 1: sum_block<1>(k, at, weights, band.panel, mask, expand, counts, aside); break;
                case 2: sum_block<2>(k, at, weights, band.panel, mask, expand, counts, aside); break;
                case 3: sum_block<3>(k, at, weights, band.panel, mask, expand, counts, aside); break;
                default: sum_block<4>(k, at, weights, band.panel, mask, expand, counts, aside); break;
            }
            finish.rest();
            const Job job{top, pixels_before(place), pixels_before(place + count * kTilePlaces), counts - (ptrdiff_t)place * kBlock};
            if (kEnding == Ending::Any) finish_any(k, e, block, job);
            finish.begin(k, e, block, job, steps);
        }
    }
    finish.rest();
}

void conv_matrix(const Conv &k, const Epilogue &e, const void *in, int y0, int y1, int b0, int b1, char *scratch, Prepared *prepared) {
    const Band band = carve(k, scratch);
    const Ending ending = ending_of(e);
    begin_tiles();
    for (int top = y0; top < y1; top += k.band) {
        const int bottom = top + k.band < y1 ? top + k.band : y1;
        put_band(k, (const uint32_t *)in, top, bottom, band, prepared);
        switch (ending) {
            case Ending::Any: conv_band<Ending::Any>(k, e, band, top, bottom - top, b0, b1); break;
            case Ending::Limits: conv_band<Ending::Limits>(k, e, band, top, bottom - top, b0, b1); break;
            case Ending::Usual: conv_band<Ending::Usual>(k, e, band, top, bottom - top, b0, b1); break;
            case Ending::Signs: conv_band<Ending::Signs>(k, e, band, top, bottom - top, b0, b1); break;
        }
    }
    end_tiles();
}

void pack_matrix(const Conv &k, const uint8_t *weight, void *panels) {
    __builtin_memset(panels, 0, (size_t)k.blocks * k.panel_bytes);
    const int taps = k.kh * k.kw, bytes = (k.fan + 7) / 8;
    for (int o = 0; o < k.o; o++) {
        char *panel = (char *)panels + (size_t)(o / kBlock) * k.panel_bytes;
        const int lane = o % kBlock, half = lane / kTilePlaces, n = lane % kTilePlaces;
        int32_t *ones = (int32_t *)(panel + 2 * k.total_units * kTileWords * 8) + lane;
        for (int tap = 0; tap < taps; tap++)
            for (int c = 0; c < k.fan; c += 4) {
                const uint8_t byte = weight[((size_t)o * taps + tap) * bytes + c / 8];
                const uint64_t nibble = byte >> c % 8 & 15;
                const long unit = half * k.total_units + (long)tap * k.units + c / kPlaneUnit;
                ((uint64_t *)panel)[unit * kTileWords + c % kPlaneUnit / 4] |= nibble << 4 * n;
                *ones += __builtin_popcount((unsigned)nibble);
            }
    }
}

void unpack_matrix(const Conv &k, const void *panels, uint8_t *weight) {
    const int taps = k.kh * k.kw, bytes = (k.fan + 7) / 8;
    for (int o = 0; o < k.o; o++) {
        const char *panel = (const char *)panels + (size_t)(o / kBlock) * k.panel_bytes;
        const int lane = o % kBlock, half = lane / kTilePlaces, n = lane % kTilePlaces;
        for (int tap = 0; tap < taps; tap++)
            for (int c = 0; c < k.fan; c += 4) {
                const long unit = half * k.total_units + (long)tap * k.units + c / kPlaneUnit;
                const uint64_t word = ((const uint64_t *)panel)[unit * kTileWords + c % kPlaneUnit / 4], nibble = word >> 4 * n & 15;
                uint8_t &byte = weight[((size_t)o * taps + tap) * bytes + c / 8];
                byte = (uint8_t)(c % 8 ? byte | nibble << 4 : nibble);
            }
    }
}

// Cycles of a tile's sums against those of the popcount kernels, at their best.
bool takes_matrix(const Conv &k) {
#if defined(XNORPP_EMULATE_AMX)
    return k.groups == 1;
#endif
    const double units = (k.fan + kPlaneUnit - 1) / kPlaneUnit, places = (double)(k.oh - 1) * plane_columns(k) + k.ow;
    const double tiles = __builtin_ceil(places / kTilePlaces);
    const double matrix = tiles * units * 2 * 16, counting = (double)k.oh * k.ow * k.words * 32 * kBlock / 384;
    return matrix <= counting;
}

}  // namespace
