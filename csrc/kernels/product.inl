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

// Many products of a row and a column side by side, one in each channel. Each is a chain of multiply-adds in order, as libraries
// for matrices sum: where numbers cancel, what is left is the rounding of one product, and its sign the same.
void side_product(const float *a, int64_t a_step, const float *b, int64_t b_step, int64_t inner, int channels, float *out) {
    int c = 0;
    for (; c + 2 * N <= channels; c += 2 * N) {
        F low = zero(), high = zero();
        for (int64_t k = 0; k < inner; k++) {
            const float *p = a + k * a_step + c, *q = b + k * b_step + c;
            low = fma(load(p), load(q), low), high = fma(load(p + N), load(q + N), high);
        }
        store(out + c, low), store(out + c + N, high);
    }
    for (; c < channels; c += N) {
        F sum = zero();
        for (int64_t k = 0; k < inner; k++) sum = fma(load(a + k * a_step + c), load(b + k * b_step + c), sum);
        store(out + c, sum);
    }
}

}  // namespace
