// Between the caller's layout (channel, row, column) and ours (row, column, channel), four by four in registers. The
// compiler's vector types are enough here and serve every instruction set.
#pragma once

#include <cstddef>

namespace xnorpp {

// to[j*to_stride + i] = from[i*from_stride + j] for i < rows, j < columns.
inline void transpose(const float *from, size_t from_stride, int rows, int columns, float *to, size_t to_stride) {
    typedef float Four __attribute__((vector_size(16), aligned(4)));
    typedef int Order __attribute__((vector_size(16)));
    const Order low = {0, 4, 1, 5}, high = {2, 6, 3, 7}, first = {0, 1, 4, 5}, second = {2, 3, 6, 7};
    const int whole_rows = rows / 4 * 4, whole_columns = columns / 4 * 4;
    for (int j = 0; j < whole_columns; j += 4)
        for (int i = 0; i < whole_rows; i += 4) {
            const float *at = from + i * from_stride + j;
            const Four a = *(const Four *)at, b = *(const Four *)(at + from_stride);
            const Four c = *(const Four *)(at + 2 * from_stride), d = *(const Four *)(at + 3 * from_stride);
            const Four ab = __builtin_shuffle(a, b, low), ab2 = __builtin_shuffle(a, b, high);
            const Four cd = __builtin_shuffle(c, d, low), cd2 = __builtin_shuffle(c, d, high);
            float *out = to + j * to_stride + i;
            *(Four *)out = __builtin_shuffle(ab, cd, first);
            *(Four *)(out + to_stride) = __builtin_shuffle(ab, cd, second);
            *(Four *)(out + 2 * to_stride) = __builtin_shuffle(ab2, cd2, first);
            *(Four *)(out + 3 * to_stride) = __builtin_shuffle(ab2, cd2, second);
        }
    for (int j = 0; j < columns; j++)
        for (int i = j < whole_columns ? whole_rows : 0; i < rows; i++)
            to[j * to_stride + i] = from[i * from_stride + j];
}

}  // namespace xnorpp
