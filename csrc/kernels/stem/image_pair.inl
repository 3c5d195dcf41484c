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

// Numbers from one pair of outputs to the next: four columns of three channels.
constexpr int kPairStep = 12;

// The pairs of numbers at kAt, kAt + kPairStep, ... of p by the vectors of filters at kWeights. An instruction set may have one of
// its own.
template <int kAt, int kWeights, class V, int kPairs>
__attribute__((always_inline)) inline void dot_beside(V (&sum)[kPairs][2], const int16_t *p, const int16_t *w) {
    const V w0 = load_pairs(w + kWeights), w1 = load_pairs(w + kWeights + 2 * N);
#pragma GCC unroll 16
    for (int i = 0; i < kPairs; i++) {
        const V a = set1_pair(p + kAt + i * kPairStep);
        sum[i][0] = dot_pairs(sum[i][0], a, w0), sum[i][1] = dot_pairs(sum[i][1], a, w1);
    }
}

struct ImagePairDot {
    using Unit = int16_t;
    using Result = int32_t;
    static constexpr int kTile = N == 16 ? 8 : 4, kPair = 2, kSlack = 160;  // 56 pairs a row divide by both
    static constexpr bool kBits = false;

    static void prepare(const Conv &k, const void *in, int row, int16_t *out, char *spare) {
        const int half = k.row_units / 2;
        ImageDot::prepare(k, in, row, out, spare);
        for (int i = k.cols * 3; i < half; i++) out[i] = 0;
        for (int i = 0; i < half - 6; i++) out[half + i] = (int16_t)(out[i] - out[i + 6]);
        for (int i = half - 6; i < half; i++) out[half + i] = 0;
    }

    // Where the pairs of a tile lie: each by itself, or one beside the other.
    struct Apart {
        const int16_t *const *bases;
        long shift;
        template <int kAt, int kWeights>
        __attribute__((always_inline)) void take(I (&sum)[kTile][2], long row, const int16_t *w) const {
            const I w0 = load_pairs(w + kWeights), w1 = load_pairs(w + kWeights + 2 * N);
#pragma GCC unroll 16
            for (int i = 0; i < kTile; i++) {
                const I a = set1_pair(bases[i] + shift + row + kAt);
                sum[i][0] = dot_pairs(sum[i][0], a, w0), sum[i][1] = dot_pairs(sum[i][1], a, w1);
            }
        }
    };
    struct Beside {
        const int16_t *at;
        template <int kAt, int kWeights>
        __attribute__((always_inline)) void take(I (&sum)[kTile][2], long row, const int16_t *w) const {
            dot_beside<kAt, kWeights>(sum, at + row, w);
        }
    };

    // Adds one sum of every pair of the tile over all kernel rows: pairs of numbers at kFirst.. and kFirst+12.. .
    template <int kFirst, int kSteps, class Place, class Sums>
    __attribute__((always_inline)) static inline const int16_t *pass(const Place &place, const Segment *rows, int count, const int16_t *w,
                                                                     Sums &sum) {
#pragma GCC unroll 1
        for (int r = 0; r < count; r++, w += kSteps * 4 * N) {
            const long row = rows[r].offset;
            place.template take<kFirst, 0>(sum, row, w);
            place.template take<kFirst + 2, 4 * N>(sum, row, w);
            place.template take<kFirst + 4, 8 * N>(sum, row, w);
            place.template take<kFirst + 12, 12 * N>(sum, row, w);
            place.template take<kFirst + 14, 16 * N>(sum, row, w);
            if constexpr (kSteps == 6) place.template take<kFirst + 16, 20 * N>(sum, row, w);
        }
        return w;
    }

    static void clear(I (&sum)[kTile][2]) {
#pragma GCC unroll 16
        for (int i = 0; i < kTile; i++) sum[i][0] = sum[i][1] = zero_ints();
    }

    // The last segment says where the differences begin.
    static void dot(const int16_t *const *bases, int, const Segment *segments, int count, const void *weights,
                    int32_t *result) {
        const int16_t *w = (const int16_t *)weights;
        const int rows = count - 1;
        const long differences = segments[rows].offset;
        const Apart numbers{bases, 0}, differing{bases, differences};
        for (int half = 0; half < kBlock; half += 2 * N) {
            I sum[kTile][2];
            alignas(64) int32_t shared[kTile * 2 * N];
            const auto put = [&](int32_t *to, int step) {
#pragma GCC unroll 16
                for (int i = 0; i < kTile; i++)
#pragma GCC unroll 2
                    for (int v = 0; v < 2; v++) store_ints(to + i * step + v * N, sum[i][v]);
            };
            clear(sum);
            w = pass<6, 6>(numbers, segments, rows, w, sum);
            put(shared, 2 * N);
            w = pass<0, 6>(differing, segments, rows, w, sum);
            put(result + half, 2 * kBlock);
#pragma GCC unroll 16
            for (int i = 0; i < kTile; i++) sum[i][0] = load_ints(shared + 2 * i * N), sum[i][1] = load_ints(shared + (2 * i + 1) * N);
            w = pass<6, 5>(differing, segments, rows, w, sum);
            put(result + kBlock + half, 2 * kBlock);
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
