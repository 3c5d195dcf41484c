// The stem of ImageNet networks together with its max pool, 3x3 with stride 2: maxima are taken of the whole sums, before
// they are floats (core/pooled_sums.cpp says when that is allowed). A window of the pool is three columns, of which the
// stem makes the last two as one pair, and the third is the pair's before: so a line keeps one number a pair, the maximum of
// the three, and a row of the pool is the maxima of three lines.

namespace {

// The pairs of a tile as maxima along the row: `sums` has column c of pair i at (2*i + c)*stride, `lanes` of them from lane on.
inline void put_maxima(const Conv &k, const Epilogue &e, const int32_t *const *shift, int first, int n, const int32_t *sums, int stride,
                       int lane, int lanes, int32_t *line, int32_t *carried) {
    for (int at = 0; at < lanes; at += N) {
        const int c = lane + at;
        const I toward = load_ints(e.toward + c);
        I last = load_ints(carried + c);
        for (int i = 0; i < n; i++) {
            const int x = 2 * (first + i);
            const int32_t *from = sums + 2 * i * stride + at;
            I most = xor_ints(add_ints(load_ints(from), shift[2 * i] + c), toward);
            if (x) most = max_ints(most, last);
            if (x + 1 < k.ow) {
                last = xor_ints(add_ints(load_ints(from + stride), shift[2 * i + 1] + c), toward);
                most = max_ints(most, last);
            }
            store_ints(line + (size_t)(first + i) * e.out_stride + c, most);
        }
        store_ints(carried + c, last);
    }
}

// Two rows from y on, whose nine rows of the image lie prepared: 2N filters after the other, so that their panel stays in the
// first-level cache.
void conv_pooled_quad(const Conv &k, const Epilogue &e, const int16_t *rows, int16_t *below, int y) {
    using D = ImageQuadDot;
    row_differences(k, rows, below);
    const int pairs = (k.ow + 1) / 2, channels = (e.channels + 15) / 16 * 16;
    const char *panels = (const char *)k.weights + (size_t)k.blocks_per_group * k.panel_bytes;
    for (int c = 0; c < channels; c += 2 * N) {
        const int lanes = channels - c < 2 * N ? channels - c : 2 * N;
        const int16_t *w = (const int16_t *)(panels + (size_t)(c / kBlock) * quad_panel_bytes());
        w += (size_t)(c % kBlock / (2 * N)) * kQuadSums * kPairUnits * 2 * N;
        alignas(64) int32_t carried[2][2 * N], left[D::kTile * 2 * N];  // the column before a pair's, and a pair's first one
        for (int i = 0; i < 4 * N; i++) carried[i / (2 * N)][i % (2 * N)] = INT32_MIN;
        const I toward[2] = {load_ints(e.toward + c), load_ints(e.toward + c + N)};
        const int32_t *shifts[2];
        for (int r = 0; r < 2; r++) shifts[r] = k.shift + (size_t)k.row_case[y + r] * k.col_cases * k.channels_padded + c;
        for (int first = 0; first < pairs; first += D::kTile) {
            const int n = pairs - first < D::kTile ? pairs - first : D::kTile;
            const size_t at = (size_t)first * kPairStep;
            size_t border[2 * D::kTile];
            for (int i = 0; i < 2 * D::kTile; i++) border[i] = (size_t)k.col_case[2 * first + i < k.ow ? 2 * first + i : k.ow - 1] * k.channels_padded;
            const bool odd = 2 * (first + n) > k.ow;  // the last pair has no second column
            D::dot(k, rows + at, below + at, w, [&](const D::Sums &sum, int r, int column) __attribute__((always_inline)) {
                const int32_t *shift = shifts[r];
                int32_t *line = e.sums + ((long)(y + r) * pairs + first) * e.out_stride + c;
                if (column == 0) {
#pragma GCC unroll 16
                    for (int i = 0; i < D::kTile; i++)
#pragma GCC unroll 2
                        for (int v = 0; v < 2; v++) store_ints(left + (2 * i + v) * N, xor_ints(add_ints(sum[i][v], shift + border[2 * i] + v * N), toward[v]));
                    return;
                }
                I last[2] = {load_ints(carried[r]), load_ints(carried[r] + N)};
#pragma GCC unroll 16
                for (int i = 0; i < D::kTile; i++, line += e.out_stride) {
                    if (i == n) break;
#pragma GCC unroll 2
                    for (int v = 0; v < 2; v++) {
                        I most = max_ints(load_ints(left + (2 * i + v) * N), last[v]);
                        last[v] = xor_ints(add_ints(sum[i][v], shift + border[2 * i + 1] + v * N), toward[v]);
                        if (!odd || i + 1 < n) most = max_ints(most, last[v]);
                        if (v * N < lanes) store_ints(line + v * N, most);
                    }
                }
                store_ints(carried[r], last[0]), store_ints(carried[r] + N, last[1]);
            });
        }
    }
}

// Four rows from y on, whose 13 rows of the image lie prepared.
void conv_pooled_eight(const Conv &k, const Epilogue &e, const int16_t *rows, int16_t *made, int y) {
    using D = ImageEightDot;
    row_parts(k.row_units, rows, made);
    const int pairs = (k.ow + 1) / 2, channels = (e.channels + 15) / 16 * 16;
    const char *panels = (const char *)k.weights + (size_t)k.blocks_per_group * (k.panel_bytes + quad_panel_bytes());
    for (int c = 0; c < channels; c += 2 * N) {
        const int lanes = channels - c < 2 * N ? channels - c : 2 * N;
        const int16_t *w = (const int16_t *)(panels + (size_t)(c / kBlock) * eight_panel_bytes());
        w += (size_t)(c % kBlock / (2 * N)) * kEightSums * kPairUnits * 2 * N;
        alignas(64) int32_t carried[4][2 * N];  // the column before a pair's
        for (int i = 0; i < 8 * N; i++) carried[i / (2 * N)][i % (2 * N)] = INT32_MIN;
        const I toward[2] = {load_ints(e.toward + c), load_ints(e.toward + c + N)};
        const int32_t *shifts[4];
        for (int r = 0; r < 4; r++) shifts[r] = k.shift + (size_t)k.row_case[y + r] * k.col_cases * k.channels_padded + c;
        for (int first = 0; first < pairs; first += D::kTile) {
            const int n = pairs - first < D::kTile ? pairs - first : D::kTile;
            const size_t at = (size_t)first * kPairStep;
            size_t border[2 * D::kTile];
            for (int i = 0; i < 2 * D::kTile; i++) border[i] = (size_t)k.col_case[2 * first + i < k.ow ? 2 * first + i : k.ow - 1] * k.channels_padded;
            const bool odd = 2 * (first + n) > k.ow;  // the last pair has no second column
            D::dot(k.row_units, rows + 6L * k.row_units + at, made + at, w, [&](int r, const int32_t *left, const D::Sums &right) __attribute__((always_inline)) {
                const int32_t *shift = shifts[r];
                int32_t *line = e.sums + ((long)(y + r) * pairs + first) * e.out_stride + c;
                I last[2] = {load_ints(carried[r]), load_ints(carried[r] + N)};
#pragma GCC unroll 16
                for (int i = 0; i < D::kTile; i++, line += e.out_stride) {
                    if (i == n) break;
#pragma GCC unroll 2
                    for (int v = 0; v < 2; v++) {
                        I most = max_ints(xor_ints(add_ints(load_ints(left + (2 * i + v) * N), shift + border[2 * i] + v * N), toward[v]), last[v]);
                        last[v] = xor_ints(add_ints(right[i][v], shift + border[2 * i + 1] + v * N), toward[v]);
                        if (!odd || i + 1 < n) most = max_ints(most, last[v]);
                        if (v * N < lanes) store_ints(line + v * N, most);
                    }
                }
                store_ints(carried[r], last[0]), store_ints(carried[r] + N, last[1]);
            });
        }
    }
}

// Rows y0..y1 of the stem: line y of `e.sums`, [pair][out_stride], gets the maxima along the row.
void conv_pooled(const Conv &k, const Epilogue &e, const void *in, int y0, int y1, char *scratch, Prepared *prepared) {
    using D = ImagePairDot;
    scratch = (char *)round_up((size_t)scratch, kLine);
    int32_t *result = (int32_t *)scratch;
    int16_t *rows = (int16_t *)(scratch + tile_bytes(k));
    bring_rows<D>(k, in, y0, y1, rows, nullptr, prepared);
    const size_t band_rows = (size_t)(k.band - 1) * k.sh + (size_t)(k.kh - 1) * k.dh + 1;
    int16_t *made = (int16_t *)round_up((size_t)(rows + band_rows * k.row_units + D::kSlack), kLine);
    if (k.eight && y1 - y0 == 4) return conv_pooled_eight(k, e, rows, made, y0);
    if (k.quad && y1 - y0 == 2) return conv_pooled_quad(k, e, rows, made, y0);
    const int pairs = (k.ow + 1) / 2;
    alignas(64) int32_t carried[kBlock] = {};  // the column before the tile's first
    for (int block = 0; block < k.blocks_per_group; block++) {
        const char *panel = (const char *)k.weights + (size_t)block * k.panel_bytes;
        const int c0 = block * kBlock, count = vectors_in(e, c0);
        for (int y = y0; y < y1; y++) {
            const int16_t *row = rows + (size_t)(y - y0) * k.sh * k.row_units;
            const int32_t *borders = k.shift + (size_t)k.row_case[y] * k.col_cases * k.channels_padded;
            int32_t *line = e.sums + ((long)y * pairs) * e.out_stride;
            for (int first = 0; first < pairs; first += D::kTile) {
                const int n = pairs - first < D::kTile ? pairs - first : D::kTile;
                const int16_t *bases[D::kTile];
                const int32_t *shift[2 * D::kTile];
                for (int i = 0; i < D::kTile; i++) {
                    const int x = 2 * (first + (i < n ? i : 0));
                    bases[i] = row + (size_t)x * k.sw * k.units;
                    shift[2 * i] = borders + (size_t)k.col_case[x] * k.channels_padded;
                    shift[2 * i + 1] = borders + (size_t)k.col_case[x + 1 < k.ow ? x + 1 : x] * k.channels_padded;
                }
                D::dot(bases, D::kTile, k.segments, k.segment_count, panel, result);
                put_maxima(k, e, shift, first, n, result, kBlock, c0, count * N, line, carried - c0);
            }
        }
    }
}

// Row y of the pool from a ring of such lines, and the epilogue of both steps.
void pool_lines(const Pool &p, const Conv &k, const Epilogue &e, const int32_t *in, int stride, int ring, int y) {
    const int32_t *lines[3];
    for (int i = 0; i < 3; i++) {  // a row outside is replaced by the middle one, which changes no maximum
        const int r = 2 * y - 1 + i >= 0 && 2 * y - 1 + i < p.h ? 2 * y - 1 + i : 2 * y;
        lines[i] = in + (size_t)(r % ring) * p.ow * stride;
    }
    int pixels[kMaxTile];
    for (int at = 0; at < p.ow; at += kMaxTile) {
        const int n = p.ow - at < kMaxTile ? p.ow - at : kMaxTile;
        for (int i = 0; i < n; i++) pixels[i] = y * p.ow + at + i;
        const size_t from = (size_t)at * stride;
        const Pooled source{lines[0] + from, lines[1] + from, lines[2] + from, stride, e.toward, k.scale, k.bias};
        for (int c0 = 0; c0 < e.channels; c0 += kBlock) finish_tile(e, source, pixels, n, c0);
    }
}

}  // namespace
