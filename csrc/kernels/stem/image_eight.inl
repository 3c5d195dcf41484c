// The stem of ImageNet networks, 7x7 with stride 2, four rows of two neighbouring outputs at once: what image_quad.inl does for
// two rows, done twice. Of the rows g0..g6 of the kernel, those of one parity meet rows of the image of that parity alone, and
// both go the same way. With a = (g0, g2), b = (g4, g6), the image's rows e0..e6 (x0, x2, ..) and whole sums of a row each,
//     (y0, y1) = a (e0 e1 e2) + b (e2 e3 e4),      (y2, y3) = a (e2 e3 e4) + b (e4 e5 e6),
// which is the pair's rule for blocks of two: (a + b) times the rows in the middle is shared, a times (e0-e2, e1-e3, e2-e4) and
// b times (e4-e2, e5-e3, e6-e4) are added. Each of the three is a pair of rows itself and shares its middle once more. Nine sums
// (the first name is the block, the second what it is a part of; odd rows have a = (g1, g3), b = (g5, 0)):
//     s:  (a0+a1+b0+b1) e3,      s0: (a0+b0) (e2-e3),               s1: (a1+b1) (e4-e3),
//     a:  (a0+a1) (e1-e3),       a0: a0 ((e0-e2)-(e1-e3)),          a1: a1 ((e2-e4)-(e1-e3)),
//     b:  (b0+b1) (e5-e3),       b0: b0 ((e4-e2)-(e5-e3)),          b1: b1 ((e6-e4)-(e5-e3)),
//     y0 = s + s0 + a + a0,      y1 = s + s1 + a + a1,      y2 = s + s0 + b + b0,      y3 = s + s1 + b + b1.
// 17 sums of a row in place of 28, each of them a pair's: 187 products for eight outputs, where quads have 242 and the plain way
// 392. Rows made of four others have 10 bits, their differences along columns 11; all sums are exact.

namespace {

struct ImageEightDot {
    using D = ImagePairDot;
    static constexpr int kTile = 4;  // pairs; of a tile all three sums of a part fit into 32 registers
    using Sums = I[kTile][2];

    // Four rows of 2N filters: `at` is the first pair's place in row 6 of the image, `made` in the rows that `row_parts` makes.
    // A row's sums go to `done(row, first column in memory, second column)`. One loop over all parts: its products once would be
    // more code than a processor holds at hand. Sums wait in memory, not in registers, while others grow.
    template <class Done>
    __attribute__((always_inline)) static inline void dot(int row_units, const int16_t *at, const int16_t *made, const int16_t *w, const Done &done) {
        alignas(64) int32_t memory[6][2][kWords];
        const Segment rows[2] = {{0, 0}, {row_units, 0}};
        long next = made - at;
#pragma GCC unroll 1
        for (const Part &p : kParts) {
            const Beside numbers{at}, differing{at + row_units / 2};
            Sums shared, sum;
            each([&](int i, int v, int) __attribute__((always_inline)) { shared[i][v] = zero_ints(); });
            w = D::pass<6, 6>(numbers, rows, p.rows, w, shared);
            const auto begin = [&](int column) __attribute__((always_inline)) {
                each([&](int i, int v, int) __attribute__((always_inline)) { sum[i][v] = shared[i][v]; });
                if (p.from != kNothing)
                    each([&](int i, int v, int word) __attribute__((always_inline)) { sum[i][v] = add_ints(sum[i][v], memory[p.from][column] + word); });
                if (p.also != kNothing)
                    each([&](int i, int v, int word) __attribute__((always_inline)) { sum[i][v] = add_ints(sum[i][v], memory[p.also][column] + word); });
            };
            begin(0);
            w = D::pass<0, 6>(differing, rows, p.rows, w, sum);
            each([&](int i, int v, int word) __attribute__((always_inline)) { store_ints(memory[p.to][0] + word, sum[i][v]); });
            begin(1);
            w = D::pass<6, 5>(differing, rows, p.rows, w, sum);
            if (p.row >= 0) done(p.row, memory[p.to][0], sum);
            else each([&](int i, int v, int word) __attribute__((always_inline)) { store_ints(memory[p.to][1] + word, sum[i][v]); });
            at += next, next = 2L * row_units;
        }
    }

  private:
    static constexpr int kWords = kTile * 2 * N;
    enum Place { kNothing, kMiddle, kUpper, kLower, kTwo, kRow };  // zeros, s, s + s0, s + s1, a or b, y
    struct Part {
        int rows, from, also, to, row;
    };
    static constexpr Part kParts[9] = {
        {2, kNothing, kNothing, kMiddle, -1}, {2, kMiddle, kNothing, kUpper, -1}, {2, kMiddle, kNothing, kLower, -1},
        {2, kNothing, kNothing, kTwo, -1}, {2, kUpper, kTwo, kRow, 0}, {2, kLower, kTwo, kRow, 1},
        {2, kNothing, kNothing, kTwo, -1}, {2, kUpper, kTwo, kRow, 2}, {1, kLower, kTwo, kRow, 3}};
    struct Beside {
        const int16_t *at;
        template <int kAt, int kWeights>
        __attribute__((always_inline)) void take(Sums &sum, long row, const int16_t *w) const {
            dot_beside<kAt, kWeights>(sum, at + row, w);
        }
    };
    template <class Use>
    __attribute__((always_inline)) static inline void each(const Use &use) {
#pragma GCC unroll 16
        for (int i = 0; i < kTile; i++)
#pragma GCC unroll 2
            for (int v = 0; v < 2; v++) use(i, v, (2 * i + v) * N);
    }
};

// (a - b) - (c - d), where there are c and d.
inline void subtract(size_t n, const int16_t *a, const int16_t *b, const int16_t *c, const int16_t *d, int16_t *__restrict out) {
    if (!c)
        for (size_t i = 0; i < n; i++) out[i] = (int16_t)(a[i] - b[i]);
    else
        for (size_t i = 0; i < n; i++) out[i] = (int16_t)(a[i] - b[i] - (c[i] - d[i]));
}

// The rows that the parts after the first read, in their order, of 13 prepared ones: an even and an odd one each, the last alone.
inline void row_parts(int row_units, const int16_t *rows, int16_t *out) {
    constexpr int kRows[8][4] = {{4, 6, -1, -1}, {8, 6, -1, -1}, {2, 6, -1, -1}, {0, 4, 2, 6}, {4, 8, 2, 6}, {10, 6, -1, -1}, {8, 4, 10, 6}, {12, 8, 10, 6}};
    const size_t n = (size_t)row_units;
    const auto row = [&](int r) { return r < 0 ? nullptr : rows + (size_t)r * n; };
    for (int i = 0; i < 8; i++, out += 2 * n)
        subtract(i < 7 ? 2 * n : n, row(kRows[i][0]), row(kRows[i][1]), row(kRows[i][2]), row(kRows[i][3]), out);
}

// weight [o][17][34], as `pack_image_pair` with the sums of a row in place of the kernel's rows; behind the quads' panels.
void pack_image_eight(const Conv &k, const int16_t *weight, void *panels) {
    const size_t before = (size_t)k.blocks_per_group * (k.panel_bytes + quad_panel_bytes());
    char *eights = (char *)panels + before;
    pack_row_sums(k, kEightSums, [](int) { return 2; }, weight, eights);
}

}  // namespace
