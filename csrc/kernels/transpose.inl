// Between the caller's layout (channel, row, column) and ours (row, column, channel).

namespace {

#if defined(__AVX512F__)

// Up to sixteen by sixteen in registers: pairs of rows, fours of rows, then blocks of four by four change places.
template <bool kWhole>
inline void turn(const float *from, size_t from_stride, int rows, int columns, float *to, size_t to_stride) {
    if (kWhole) rows = columns = 16;
    const __mmask16 across = (__mmask16)((1u << columns) - 1), down = (__mmask16)((1u << rows) - 1);
    __m512 a[16], b[16];
#pragma GCC unroll 16
    for (int i = 0; i < 16; i++) a[i] = kWhole ? _mm512_loadu_ps(from + (size_t)i * from_stride) : i < rows ? _mm512_maskz_loadu_ps(across, from + (size_t)i * from_stride) : _mm512_setzero_ps();
#pragma GCC unroll 8
    for (int i = 0; i < 16; i += 2) b[i] = _mm512_unpacklo_ps(a[i], a[i + 1]), b[i + 1] = _mm512_unpackhi_ps(a[i], a[i + 1]);
#pragma GCC unroll 4
    for (int i = 0; i < 16; i += 4)
#pragma GCC unroll 2
        for (int j = 0; j < 2; j++) {
            const __m512d upper = _mm512_castps_pd(b[i + j]), lower = _mm512_castps_pd(b[i + 2 + j]);
            a[i + 2 * j] = _mm512_castpd_ps(_mm512_unpacklo_pd(upper, lower)), a[i + 2 * j + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(upper, lower));
        }
#pragma GCC unroll 4
    for (int j = 0; j < 4; j++) {
        const __m512 first = _mm512_shuffle_f32x4(a[j], a[4 + j], 0x44), second = _mm512_shuffle_f32x4(a[8 + j], a[12 + j], 0x44);
        const __m512 third = _mm512_shuffle_f32x4(a[j], a[4 + j], 0xee), fourth = _mm512_shuffle_f32x4(a[8 + j], a[12 + j], 0xee);
        b[j] = _mm512_shuffle_f32x4(first, second, 0x88), b[4 + j] = _mm512_shuffle_f32x4(first, second, 0xdd);
        b[8 + j] = _mm512_shuffle_f32x4(third, fourth, 0x88), b[12 + j] = _mm512_shuffle_f32x4(third, fourth, 0xdd);
    }
#pragma GCC unroll 16
    for (int j = 0; j < 16; j++)
        if (kWhole) _mm512_storeu_ps(to + (size_t)j * to_stride, b[j]);
        else if (j < columns) _mm512_mask_storeu_ps(to + (size_t)j * to_stride, down, b[j]);
}

// to[j*to_stride + i] = from[i*from_stride + j] for i < rows, j < columns.
void transpose(const float *from, size_t from_stride, int rows, int columns, float *to, size_t to_stride) {
    for (int j = 0; rows < 4 && j < columns; j++)  // the channels of an image: nothing to gain
        for (int i = 0; i < rows; i++) to[(size_t)j * to_stride + i] = from[(size_t)i * from_stride + j];
    const auto tile = [&](int i, int j) __attribute__((always_inline)) {
        const int down = rows - i < 16 ? rows - i : 16, across = columns - j < 16 ? columns - j : 16;
        const auto some = down + across == 32 ? turn<true> : turn<false>;
        some(from + (size_t)i * from_stride + j, from_stride, down, across, to + (size_t)j * to_stride + i, to_stride);
    };
    // Along the longer side: sixteen lines of memory at a time are read (or written) from end to end.
    for (int j = 0; rows >= 4 && rows >= columns && j < columns; j += 16)
        for (int i = 0; i < rows; i += 16) tile(i, j);
    for (int i = 0; rows >= 4 && rows < columns && i < rows; i += 16)
        for (int j = 0; j < columns; j += 16) tile(i, j);
}

#else

// The same, four by four in registers, sixteen rows at a time; the compiler's vector types are enough.
void transpose(const float *from, size_t from_stride, int rows, int columns, float *to, size_t to_stride) {
    typedef float Four __attribute__((vector_size(16), aligned(4)));
#if defined(__clang__)
    const auto low = [](Four a, Four b) -> Four { return __builtin_shufflevector(a, b, 0, 4, 1, 5); };
    const auto high = [](Four a, Four b) -> Four { return __builtin_shufflevector(a, b, 2, 6, 3, 7); };
    const auto first = [](Four a, Four b) -> Four { return __builtin_shufflevector(a, b, 0, 1, 4, 5); };
    const auto second = [](Four a, Four b) -> Four { return __builtin_shufflevector(a, b, 2, 3, 6, 7); };
#else  // GCC has the other builtin since version 12 only
    typedef int Order __attribute__((vector_size(16)));
    const auto low = [](Four a, Four b) -> Four { return __builtin_shuffle(a, b, Order{0, 4, 1, 5}); };
    const auto high = [](Four a, Four b) -> Four { return __builtin_shuffle(a, b, Order{2, 6, 3, 7}); };
    const auto first = [](Four a, Four b) -> Four { return __builtin_shuffle(a, b, Order{0, 1, 4, 5}); };
    const auto second = [](Four a, Four b) -> Four { return __builtin_shuffle(a, b, Order{2, 3, 6, 7}); };
#endif
    const int whole_rows = rows / 4 * 4, whole_columns = columns / 4 * 4;
    for (int top = 0; top < whole_rows; top += 16)
        for (int j = 0; j < whole_columns; j += 4)
            for (int i = top; i < top + 16 && i < whole_rows; i += 4) {
                const float *at = from + i * from_stride + j;
                const Four a = *(const Four *)at, b = *(const Four *)(at + from_stride);
                const Four c = *(const Four *)(at + 2 * from_stride), d = *(const Four *)(at + 3 * from_stride);
                const Four ab = low(a, b), ab2 = high(a, b);
                const Four cd = low(c, d), cd2 = high(c, d);
                float *out = to + j * to_stride + i;
                *(Four *)out = first(ab, cd);
                *(Four *)(out + to_stride) = second(ab, cd);
                *(Four *)(out + 2 * to_stride) = first(ab2, cd2);
                *(Four *)(out + 3 * to_stride) = second(ab2, cd2);
            }
    for (int j = 0; j < columns; j++)
        for (int i = j < whole_columns ? whole_rows : 0; i < rows; i++)
            to[j * to_stride + i] = from[i * from_stride + j];
}

#endif

}  // namespace
