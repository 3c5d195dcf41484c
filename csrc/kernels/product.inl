// A product of two matrices of floats: out[i][j] = sum over k of a[i][k]*b[k][j], summed over k in order. `columns` is a multiple
// of 16, as every stride of b and out; some rows and two vectors at a time stay in registers.

namespace {

template <int kRows, int kVectors>
inline void product_tile(const float *a, int a_step, const float *b, int b_step, int inner, float *out, int out_step) {
    F sum[kRows][kVectors];
#pragma GCC unroll 8
    for (int i = 0; i < kRows; i++)
#pragma GCC unroll 2
        for (int j = 0; j < kVectors; j++) sum[i][j] = zero();
    for (int k = 0; k < inner; k++) {
        F v[kVectors];
#pragma GCC unroll 2
        for (int j = 0; j < kVectors; j++) v[j] = load(b + (size_t)k * b_step + j * N);
#pragma GCC unroll 8
        for (int i = 0; i < kRows; i++) {
            const F u = set1(a[(size_t)i * a_step + k]);
#pragma GCC unroll 2
            for (int j = 0; j < kVectors; j++) sum[i][j] = fma(u, v[j], sum[i][j]);
        }
    }
#pragma GCC unroll 8
    for (int i = 0; i < kRows; i++)
#pragma GCC unroll 2
        for (int j = 0; j < kVectors; j++) store(out + (size_t)i * out_step + j * N, sum[i][j]);
}

template <int kVectors>
inline void product_columns(const float *a, int a_step, const float *b, int b_step, int rows, int inner, float *out, int out_step) {
    constexpr int kRows = N == 16 ? 8 : 4;  // registers are twice as many where they are twice as wide
    int i = 0;
    for (; i + kRows <= rows; i += kRows)
        product_tile<kRows, kVectors>(a + (size_t)i * a_step, a_step, b, b_step, inner, out + (size_t)i * out_step, out_step);
    for (; kRows > 4 && i + 4 <= rows; i += 4)
        product_tile<4, kVectors>(a + (size_t)i * a_step, a_step, b, b_step, inner, out + (size_t)i * out_step, out_step);
    for (; i < rows; i++) product_tile<1, kVectors>(a + (size_t)i * a_step, a_step, b, b_step, inner, out + (size_t)i * out_step, out_step);
}

void float_product(const float *a, int a_step, const float *b, int b_step, int rows, int inner, int columns, float *out, int out_step) {
    int j = 0;
    for (; j + 2 * N <= columns; j += 2 * N) product_columns<2>(a, a_step, b + j, b_step, rows, inner, out + j, out_step);
    for (; j < columns; j += N) product_columns<1>(a, a_step, b + j, b_step, rows, inner, out + j, out_step);
}

// Many products of matrices side by side, one in each channel: out[i][j] = sum over k of a[i][k]*b[k][j], by steps of whole vectors
// of channels. Each sum is a chain of multiply-adds in order, as libraries for matrices sum: where numbers cancel, what is left
// is the rounding of one product, and its sign the same.
template <int kRows, int kColumns>
inline void side_tile(const SideProduct &s, const float *a, const float *b, float *out) {
    F sum[kRows][kColumns];
#pragma GCC unroll 4
    for (int i = 0; i < kRows; i++)
#pragma GCC unroll 4
        for (int j = 0; j < kColumns; j++) sum[i][j] = zero();
    for (int64_t k = 0; k < s.inner; k++, a += s.a_inner, b += s.b_inner) {
        F v[kColumns];
#pragma GCC unroll 4
        for (int j = 0; j < kColumns; j++) v[j] = load(b + j * s.b_column);
#pragma GCC unroll 4
        for (int i = 0; i < kRows; i++) {
            const F u = load(a + i * s.a_row);
#pragma GCC unroll 4
            for (int j = 0; j < kColumns; j++) sum[i][j] = fma(u, v[j], sum[i][j]);
        }
    }
#pragma GCC unroll 4
    for (int i = 0; i < kRows; i++)
#pragma GCC unroll 4
        for (int j = 0; j < kColumns; j++) store(out + i * s.out_row + j * s.out_column, sum[i][j]);
}

template <int kRows>
inline void side_rows(const SideProduct &s, const float *a, const float *b, float *out) {
    int j = 0;
    for (; j + 4 <= s.columns; j += 4) side_tile<kRows, 4>(s, a, b + j * s.b_column, out + j * s.out_column);
    for (; j < s.columns; j++) side_tile<kRows, 1>(s, a, b + j * s.b_column, out + j * s.out_column);
}

void side_product(const SideProduct &s, const float *a, const float *b, float *out) {
    constexpr int kRows = N == 16 ? 4 : 2;
    for (int c = 0; c < s.channels; c += N) {
        int i = 0;
        for (; i + kRows <= s.rows; i += kRows) side_rows<kRows>(s, a + i * s.a_row + c, b + c, out + i * s.out_row + c);
        for (; i < s.rows; i++) side_rows<1>(s, a + i * s.a_row + c, b + c, out + i * s.out_row + c);
    }
}

// exp(x - greatest) / sum of them in each of `lanes` columns of `size` rows that are `far` apart; sums are of doubles.
void softmax(float *rows, int64_t far, int64_t size, int lanes) {
    for (int c = 0; c < lanes; c += N) {
        F most = load(rows + c);
        for (int64_t i = 1; i < size; i++) most = max_nan(most, load(rows + i * far + c));
        const F less = xor_sign(most, set1(-0.0f));
        for (int64_t i = 0; i < size; i++) store(rows + i * far + c, add(load(rows + i * far + c), less));
    }
    if (far == lanes) run_curve(kExpCurve, 0, rows, (int)size * lanes);
    else
        for (int64_t i = 0; i < size; i++) run_curve(kExpCurve, 0, rows + i * far, lanes);
    for (int c = 0; c < lanes; c += N) {
        Doubles sums[N / kDoubles] = {};
        for (int64_t i = 0; i < size; i++)
            for (int j = 0; j < N / kDoubles; j++) sums[j] += load_doubles(rows + i * far + c + j * kDoubles);
        alignas(64) float total[N];
        for (int k = 0; k < N; k++) total[k] = (float)sums[k / kDoubles][k % kDoubles];
        const F all = load(total);
        for (int64_t i = 0; i < size; i++) store(rows + i * far + c, div(load(rows + i * far + c), all));
    }
}

}  // namespace
