// Numbers that are joined, chosen, repeated, enlarged or pooled by windows of different sizes.
#include "producer.cuh"

// constant: (channel, pixel) of the source that each channel of the result, and that each pixel of it contributes.
XN_INLINE void moved_values(const PlainArguments& a, const Place& p, float (&v)[8]) {
    const int* channels = (const int*)a.constant[0];
    const int* pixel = (const int*)a.constant[1] + 2 * pixel_of(a, p);
    EACH_CHANNEL(v[i] = source_at(a, p.image, channels[2 * c + 1] + pixel[1], channels[2 * c] + pixel[0]))
}

// Number `c` of pixel `at` of one of the inputs.
XN_INLINE float part_at(const PlainArguments& a, int part, int image, long at, int c) {
    return part == 0 ? source_at(a, image, at, c) : operand_at(a, part - 1, image, at, c);
}

// number: the axis, the numbers of one step along it, how many inputs there are, and the size of each along it.
XN_INLINE void joined_values(const PlainArguments& a, const Place& p, float (&v)[8]) {
    const int axis = a.number[0], parts = a.number[2];
    const long pixel = pixel_of(a, p);
    if (axis == 0) {
        EACH_CHANNEL(int part = 0; int at = c; while (part + 1 < parts && at >= a.number[3 + part]) at -= a.number[3 + part++];
                     v[i] = part_at(a, part, p.image, pixel, at))
        return;
    }
    const long inner = a.number[1];
    int whole = 0, part = 0;
    for (int k = 0; k < parts; ++k) whole += a.number[3 + k];
    long at = pixel / inner % whole;
    while (part + 1 < parts && at >= a.number[3 + part]) at -= a.number[3 + part++];
    const long from = (pixel / (inner * whole) * a.number[3 + part] + at) * inner + pixel % inner;
    EACH_CHANNEL(v[i] = part_at(a, part, p.image, from, c))
}

// constant: for each row and for each column four of the source and the bits of their weights.
XN_INLINE void cubic_values(const PlainArguments& a, const Place& p, float (&v)[8]) {
    const int* y = (const int*)a.constant[0] + 8 * p.y;
    const int* x = (const int*)a.constant[1] + 8 * p.x;
    for (int r = 0; r < 4; ++r) {
        const float weight = __uint_as_float((u32)y[4 + r]);
        EACH_CHANNEL(float row = __fmul_rn(__uint_as_float((u32)x[4]), fetch(a, p.image, y[r], x[0], c));
                     for (int k = 1; k < 4; ++k)
                         row = __fadd_rn(row, __fmul_rn(__uint_as_float((u32)x[4 + k]), fetch(a, p.image, y[r], x[k], c)));
                     v[i] = r == 0 ? __fmul_rn(weight, row) : __fadd_rn(v[i], __fmul_rn(weight, row)))
    }
}

// number[0]: 0 where each number is one of the source, 2 for four by four of them. Otherwise constant: for each row and for
// each column two of the source and the bits of their weights.
XN_INLINE void enlarged_values(const PlainArguments& a, const Place& p, float (&v)[8]) {
    if (a.number[0] == 0) return moved_values(a, p, v);
    if (a.number[0] == 2) return cubic_values(a, p, v);
    const int* y = (const int*)a.constant[0] + 4 * p.y;
    const int* x = (const int*)a.constant[1] + 4 * p.x;
    const float y0 = __uint_as_float((u32)y[2]), y1 = __uint_as_float((u32)y[3]);
    const float x0 = __uint_as_float((u32)x[2]), x1 = __uint_as_float((u32)x[3]);
    EACH_CHANNEL(const float above = __fadd_rn(__fmul_rn(x0, fetch(a, p.image, y[0], x[0], c)),
                                               __fmul_rn(x1, fetch(a, p.image, y[0], x[1], c)));
                 const float under = __fadd_rn(__fmul_rn(x0, fetch(a, p.image, y[1], x[0], c)),
                                               __fmul_rn(x1, fetch(a, p.image, y[1], x[1], c)));
                 v[i] = __fadd_rn(__fmul_rn(y0, above), __fmul_rn(y1, under)))
}

struct Window {
    int top, bottom, left, right;
};
XN_INLINE Window window_of(const PlainArguments& a, const Place& p) {
    Window w;
    w.top = (int)((long)p.y * a.h / a.oh);
    w.bottom = (int)(((long)(p.y + 1) * a.h + a.oh - 1) / a.oh);
    w.left = (int)((long)p.x * a.w / a.ow);
    w.right = (int)(((long)(p.x + 1) * a.w + a.ow - 1) / a.ow);
    return w;
}

XN_INLINE void adaptive_means(const PlainArguments& a, const Place& p, float (&v)[8]) {
    const Window w = window_of(a, p);
    for (int y = w.top; y < w.bottom; ++y)
        for (int x = w.left; x < w.right; ++x) { EACH_CHANNEL(v[i] = __fadd_rn(v[i], fetch(a, p.image, y, x, c))) }
    const float size = __int2float_rn((w.bottom - w.top) * (w.right - w.left));
    EACH8(v[i] = __fdiv_rn(v[i], size))
}

XN_INLINE float greater_of(float best, float u) { return u <= best ? best : best != best ? best : u; }  // a NaN wins and stays

XN_INLINE void adaptive_maxima(const PlainArguments& a, const Place& p, float (&v)[8]) {
    const Window w = window_of(a, p);
    EACH8(v[i] = -__uint_as_float(0x7f800000u))
    for (int y = w.top; y < w.bottom; ++y)
        for (int x = w.left; x < w.right; ++x) { EACH_CHANNEL(v[i] = greater_of(v[i], fetch(a, p.image, y, x, c))) }
}

// number: rows and columns of the kernel, the stride, the padding and the dilation.
XN_INLINE void dilated_maxima(const PlainArguments& a, const Place& p, float (&v)[8]) {
    EACH8(v[i] = -__uint_as_float(0x7f800000u))
    for (int ky = 0; ky < a.number[0]; ++ky)
        for (int kx = 0; kx < a.number[1]; ++kx) {
            const int y = p.y * a.number[2] - a.number[4] + ky * a.number[6], x = p.x * a.number[3] - a.number[5] + kx * a.number[7];
            if (y >= 0 && y < a.h && x >= 0 && x < a.w) { EACH_CHANNEL(v[i] = greater_of(v[i], fetch(a, p.image, y, x, c))) }
        }
}

// constant: [pixel][channel].
XN_INLINE void constant_values(const PlainArguments& a, const Place& p, float (&v)[8]) {
    const float* value = (const float*)a.constant[0] + pixel_of(a, p) * a.oc;
    EACH_CHANNEL(v[i] = value[c])
}

PLAIN(moved, moved_values(a, p, v))
PLAIN(concat, joined_values(a, p, v))
PLAIN(upsample, enlarged_values(a, p, v))
PLAIN(adaptive_mean, adaptive_means(a, p, v))
PLAIN(adaptive_max, adaptive_maxima(a, p, v))
PLAIN(dilated_max, dilated_maxima(a, p, v))
PLAIN(constant_value, constant_values(a, p, v))
