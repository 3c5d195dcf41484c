// The stem of ImageNet networks, 7 columns wide with stride 2 over three channels, two neighbouring outputs at once.
//
// Output pixels 2q and 2q+1 see columns x0..x6 and x2..x8 (counted from 4q) with the same taps g0..g6:
//     y0 = g0 x0 + g1 x1 + g2 x2 + g3 x3 + g4 x4 + g5 x5 + g6 x6
//     y1 = g0 x2 + g1 x3 + g2 x4 + g3 x5 + g4 x6 + g5 x7 + g6 x8
// With the differences d_i = x_i - x_{i+2} and the sum that both share,
//     s  = (g0+g2) x2 + (g1+g3) x3 + (g4+g6) x6 + g5 x7,
//     y0 = s + g0 d0 + g1 d1 + g4 d4 + g5 d5,
//     y1 = s - g2 d2 - g3 d3 - g6 d6,
// 11 products instead of 14 (a column is three channels, so 33 for 42; in pairs of 16-bit numbers 17 for 22). The
// differences of a row are made once, for all filters. x is a byte and d needs 9 bits: all sums are exact.
//
// A prepared row holds x, then d; the columns of each sum above are two runs of neighbouring numbers, so the places
// are fixed: s reads x at columns 2, 3 and 6, 7; y0 reads d at 0, 1 and 4, 5; y1 reads d at 2, 3 and 6.

namespace {

struct ImagePairDot {
    using Unit = int16_t;
    using Result = int32_t;
    static constexpr int kTile = N == 16 ? 8 : 4, kPair = 2, kSlack = 64;  // 56 pairs a row divide by both
    static constexpr bool kBits = false;

    static void prepare(const Conv &k, const void *in, int row, int16_t *out, char *spare) {
        const int half = k.row_units / 2;
        ImageDot::prepare(k, in, row, out, spare);
        for (int i = k.cols * 3; i < half; i++) out[i] = 0;
        for (int i = 0; i < half - 6; i++) out[half + i] = (int16_t)(out[i] - out[i + 6]);
        for (int i = half - 6; i < half; i++) out[half + i] = 0;
    }

    // One sum of every pair of the tile over all kernel rows: pairs of numbers at kFirst.. and kFirst+12.. .
    template <int kFirst, int kSteps>
    static const int16_t *pass(const int16_t *const *bases, long shift, const Segment *rows, int count, const int16_t *w,
                               I (*out)[2]) {
        I sum[kTile][2];
#pragma GCC unroll 16
        for (int i = 0; i < kTile; i++) sum[i][0] = sum[i][1] = zero_ints();
        for (int r = 0; r < count; r++) {
            const int16_t *p[kTile];
#pragma GCC unroll 16
            for (int i = 0; i < kTile; i++) p[i] = bases[i] + shift + rows[r].offset;
#pragma GCC unroll 8
            for (int u = 0; u < kSteps; u++, w += 4 * N) {
                const int at = kFirst + (u < 3 ? 2 * u : 12 + 2 * (u - 3));
                const I w0 = load_pairs(w), w1 = load_pairs(w + 2 * N);
#pragma GCC unroll 16
                for (int i = 0; i < kTile; i++) {
                    const I a = set1_pair(p[i] + at);
                    sum[i][0] = dot_pairs(sum[i][0], a, w0);
                    sum[i][1] = dot_pairs(sum[i][1], a, w1);
                }
            }
        }
#pragma GCC unroll 16
        for (int i = 0; i < kTile; i++) out[i][0] = sum[i][0], out[i][1] = sum[i][1];
        return w;
    }

    // The last segment says where the differences begin.
    static void dot(const int16_t *const *bases, int, const Segment *segments, int count, const void *weights,
                    int32_t *result) {
        const int16_t *w = (const int16_t *)weights;
        const int rows = count - 1;
        const long differences = segments[rows].offset;
        for (int half = 0; half < kBlock; half += 2 * N) {
            I sum[kTile][2];
            alignas(64) int32_t shared[kTile * 2 * N];
            w = pass<6, 6>(bases, 0, segments, rows, w, sum);
            for (int i = 0; i < kTile; i++)
                for (int v = 0; v < 2; v++) store_ints(shared + (i * 2 + v) * N, sum[i][v]);
            w = pass<0, 6>(bases, differences, segments, rows, w, sum);
            for (int i = 0; i < kTile; i++)
                for (int v = 0; v < 2; v++)
                    store_ints(result + 2 * i * kBlock + half + v * N, add_ints(sum[i][v], shared + (i * 2 + v) * N));
            w = pass<6, 5>(bases, differences, segments, rows, w, sum);
            for (int i = 0; i < kTile; i++)
                for (int v = 0; v < 2; v++)
                    store_ints(result + (2 * i + 1) * kBlock + half + v * N, add_ints(sum[i][v], shared + (i * 2 + v) * N));
        }
    }
};

// weight [o][kh][34]: 12 numbers of s, 12 of y0, 10 of y1, each in the order of the columns read.
void pack_image_pair(const Conv &k, const int16_t *weight, void *panels) {
    constexpr int begin[3] = {0, 12, 24}, length[3] = {12, 12, 10};
    __builtin_memset(panels, 0, (size_t)k.blocks_per_group * k.panel_bytes);
    for (int o = 0; o < k.o; o++) {
        const int lane = o % kBlock;
        int16_t *panel = (int16_t *)((char *)panels + (size_t)(o / kBlock) * k.panel_bytes);
        panel += (size_t)(lane / (2 * N)) * k.kh * kPairUnits * 2 * N;
        for (int part = 0; part < 3; part++)
            for (int row = 0; row < k.kh; row++)
                for (int j = 0; j < length[part]; j++) {
                    const size_t pair = (size_t)k.kh * begin[part] / 2 + (size_t)row * length[part] / 2 + (size_t)j / 2;
                    panel[(pair * 2 * N + (size_t)(lane % (2 * N))) * 2 + (size_t)j % 2] =
                        weight[((size_t)o * k.kh + row) * kPairUnits + begin[part] + j];
                }
    }
}

}  // namespace
