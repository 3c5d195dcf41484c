// The stem of ImageNet networks, 7x7 with stride 2, two rows of two neighbouring outputs at once: what image_pair.inl does
// along columns, done along rows too. With the rows g0..g6 of the kernel and x0..x8 of the image, each a whole row's sum,
//     s  = (g0+g2) x2 + (g1+g3) x3 + (g4+g6) x6 + g5 x7,
//     y0 = s + g0 d0 + g1 d1 + g4 d4 + g5 d5,      y1 = s - g2 d2 - g3 d3 - g6 d6,      d_i = x_i - x_{i+2},
// 11 sums of a row in place of 14, and each of them is a pair's: 121 products in place of 196, of 154 with pairs alone. A row of
// differences is made from prepared rows, numbers and differences along columns alike (10 bits); all sums are exact.

namespace {

constexpr int kQuadPart[3] = {4, 4, 3};   // sums of a row in s, y0 and y1
constexpr int kQuadRows[3][4] = {{2, 3, 6, 7}, {0, 1, 4, 5}, {2, 3, 6, 0}};  // rows of the image, or of the differences

struct ImageQuadDot {
    using D = ImagePairDot;
    static constexpr int kTile = D::kTile;
    using Sums = I[kTile][2];

    // One of s, y0 and y1: of both columns of every pair, each of which begins as `before` has it and ends in `done(sums, column)`.
    // `at` is the first pair's place in row 0 of the image, or of the differences of rows.
    template <int kWhich, class Before, class Done>
    __attribute__((always_inline)) static inline const int16_t *part(const int16_t *at, const Conv &k, const int16_t *w, const Before &before,
                                                                     const Done &done) {
        constexpr int kCount = kQuadPart[kWhich];
        Segment rows[kCount];
        for (int i = 0; i < kCount; i++) rows[i] = Segment{kQuadRows[kWhich][i] * k.row_units, 0};
        const D::Beside numbers{at}, differing{at + k.row_units / 2};
        Sums sum;
        alignas(64) int32_t shared[kTile * 2 * N];
        D::clear(sum);
        w = D::pass<6, 6>(numbers, rows, kCount, w, sum);
#pragma GCC unroll 16
        for (int i = 0; i < kTile; i++) store_ints(shared + 2 * i * N, sum[i][0]), store_ints(shared + (2 * i + 1) * N, sum[i][1]);
        before(sum, 0);
        w = D::pass<0, 6>(differing, rows, kCount, w, sum);
        done(sum, 0);
#pragma GCC unroll 16
        for (int i = 0; i < kTile; i++) sum[i][0] = load_ints(shared + 2 * i * N), sum[i][1] = load_ints(shared + (2 * i + 1) * N);
        before(sum, 1);
        w = D::pass<6, 5>(differing, rows, kCount, w, sum);
        done(sum, 1);
        return w;
    }

    // Both rows of 2N filters. `below` is the first pair's place in the differences of rows; a row's sums go to
    // `done(sums, row, column)`.
    template <class Done>
    __attribute__((always_inline)) static inline void dot(const Conv &k, const int16_t *at, const int16_t *below, const int16_t *w, const Done &done) {
        alignas(64) int32_t shared[2][kTile * 2 * N];
        const auto none = [](Sums &, int) __attribute__((always_inline)) {};
        const auto keep_them = [&](const Sums &sum, int column) __attribute__((always_inline)) {
#pragma GCC unroll 16
            for (int i = 0; i < kTile; i++)
#pragma GCC unroll 2
                for (int v = 0; v < 2; v++) store_ints(shared[column] + (2 * i + v) * N, sum[i][v]);
        };
        const auto add_them = [&](Sums &sum, int column) __attribute__((always_inline)) {
#pragma GCC unroll 16
            for (int i = 0; i < kTile; i++)
#pragma GCC unroll 2
                for (int v = 0; v < 2; v++) sum[i][v] = add_ints(sum[i][v], shared[column] + (2 * i + v) * N);
        };
        w = part<0>(at, k, w, none, keep_them);
        w = part<1>(below, k, w, add_them, [&](const Sums &sum, int column) __attribute__((always_inline)) { done(sum, 0, column); });
        part<2>(below, k, w, add_them, [&](const Sums &sum, int column) __attribute__((always_inline)) { done(sum, 1, column); });
    }
};

// d_i of 9 prepared rows.
inline void row_differences(const Conv &k, const int16_t *rows, int16_t *out) {
    const size_t n = (size_t)7 * k.row_units, two = (size_t)2 * k.row_units;
    for (size_t i = 0; i < n; i++) out[i] = (int16_t)(rows[i] - rows[i + two]);
}

// Sums of a row as panels, [sums of a row][34] of each filter: of the parts that are taken one after the other, each with
// `rows(part)` sums, the numbers of s of all its sums, then those of y0 and of y1 (image_pair.inl).
template <class Rows>
void pack_row_sums(const Conv &k, int sums, const Rows &rows, const int16_t *weight, char *panels) {
    constexpr int begin[3] = {0, 12, 24}, length[3] = {12, 12, 10};
    const size_t bytes = (size_t)sums * kPairUnits * 2 * kBlock;
    __builtin_memset(panels, 0, (size_t)k.blocks_per_group * bytes);
    for (int o = 0; o < k.o; o++) {
        const int lane = o % kBlock;
        int16_t *panel = (int16_t *)(panels + (size_t)(o / kBlock) * bytes);
        panel += (size_t)(lane / (2 * N)) * sums * kPairUnits * 2 * N;
        for (int which = 0, first = 0, count; first < sums; first += count, which++) {
            count = sums - first < rows(which) ? sums - first : rows(which);
            for (int part = 0; part < 3; part++)
                for (int row = 0; row < count; row++)
                    for (int j = 0; j < length[part]; j++) {
                        const size_t pair = (size_t)first * kPairUnits / 2 + (size_t)count * begin[part] / 2 +
                                            (size_t)row * length[part] / 2 + (size_t)j / 2;
                        panel[(pair * 2 * N + (size_t)(lane % (2 * N))) * 2 + (size_t)j % 2] =
                            weight[((size_t)o * sums + first + row) * kPairUnits + begin[part] + j];
                    }
        }
    }
}

// weight [o][11][34]; behind the pairs' panels.
void pack_image_quad(const Conv &k, const int16_t *weight, void *panels) {
    char *quads = (char *)panels + (size_t)k.blocks_per_group * k.panel_bytes;
    pack_row_sums(k, kQuadSums, [](int part) { return kQuadPart[part]; }, weight, quads);
}

}  // namespace
