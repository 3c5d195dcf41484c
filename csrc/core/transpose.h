// Between the caller's layout (channel, row, column) and ours (row, column, channel), four by four in registers. The
// compiler's vector types are enough here and serve every instruction set.
#pragma once

#include <cstddef>

namespace xnorpp {

// to[j*to_stride + i] = from[i*from_stride + j] for i < rows, j < columns.
inline void transpose(const float *from, size_t from_stride, int rows, int columns, float *to, size_t to_stride) {
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
    for (int j = 0; j < whole_columns; j += 4)
        for (int i = 0; i < whole_rows; i += 4) {
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

}  // namespace xnorpp
