// Pools and channel means over NHWC floats, a row of output at a time.

namespace {

// The part of a window that lies inside: taps begin..end of the kernel.
struct Clip {
    int begin, end;
};
inline Clip clip(int first, int kernel, int dilation, int size) {
    Clip c{0, kernel};
    while (c.begin < kernel && first + c.begin * dilation < 0) c.begin++;
    while (c.end > c.begin && first + (c.end - 1) * dilation >= size) c.end--;
    return c;
}

// Rows or columns a mean counts: with the padding (never beyond it) or without it.
inline int counted(const Pool &p, const Clip &inside, int first, int kernel, int size, int padding) {
    if (!p.include_pad) return inside.end - inside.begin;
    const int end = size + padding - first;
    return end < kernel ? end : kernel;
}

// Three rows and three columns, the pool behind every ImageNet stem: the maximum of a column of three is taken once
// and used by every window that it is in.
void max_pool_3x3(const Pool &p, const float *const *lines, int stride, float *row) {
    for (int v = 0; v < p.c; v += N) {
        const auto column = [&](int x) {
            const size_t at = (size_t)x * stride + v;
            return max_nan(max_nan(load(lines[0] + at), load(lines[1] + at)), load(lines[2] + at));
        };
        F right = set1(-__builtin_inff());  // the column that the next window shares; the padding, at first
        for (int x = 0; x < p.ow; x++) {
            const int left = x * 2 - 1;
            F value = max_nan(right, column(left + 1));
            if (left + 2 < p.w) value = max_nan(value, right = column(left + 2));
            store(row + (size_t)x * stride + v, value);
        }
    }
}

// The mean of two by two numbers, the pool of downsampling shortcuts; summed in the order of the general way below.
void mean_pool_2x2(const Pool &p, const float *upper, const float *lower, int stride, float *row) {
    const F part = set1(0.25f);
    const int width = (p.c + N - 1) / N * N;
    for (int x = 0; x < p.ow; x++, upper += 2 * stride, lower += 2 * stride, row += stride)
        for (int v = 0; v < width; v += N) {
            const F sum = add(add(zero(), load(upper + v)), load(upper + stride + v));
            store(row + v, mul(add(add(sum, load(lower + v)), load(lower + stride + v)), part));
        }
}

// XNOR-Net's filter k: every tap counts, also outside.
void box_row(const Pool &p, const float *in, int stride, int ring, int y, float *row) {
    const int top = y * p.sh - p.ph;
    const Clip tall = clip(top, p.kh, p.dh, p.h);
    for (int x = 0; x < p.ow; x++) {
        const int left = x * p.sw - p.pw;
        const Clip wide = clip(left, p.kw, p.dw, p.w);
        for (int c = 0; c < p.c; c++) {
            double sum = 0;
            for (int i = tall.begin; i < tall.end; i++) {
                const int r = top + i * p.dh;
                const float *line = in + (size_t)(ring > 0 ? r % ring : r) * p.w * stride + c;
                for (int j = wide.begin; j < wide.end; j++) sum += line[(size_t)(left + j * p.dw) * stride];
            }
            row[(size_t)x * stride + c] = (float)(sum / (p.kh * p.kw));
        }
    }
}

void pool_row(const Pool &p, const float *in, int stride, int ring, int y, float *row) {
    if (p.box) return box_row(p, in, stride, ring, y, row);
    if (p.max && p.kh == 3 && p.kw == 3 && p.sw == 2 && p.pw == 1 && p.dh == 1 && p.dw == 1 && (p.ow - 1) * 2 < p.w) {
        const int first = y * p.sh - p.ph;
        const float *lines[3];
        for (int i = 0; i < 3; i++) {  // a row outside is replaced by the middle one, which changes no maximum
            const int r = first + i >= 0 && first + i < p.h ? first + i : first + 1;
            lines[i] = in + (size_t)(ring > 0 ? r % ring : r) * p.w * stride;
        }
        if (first + 1 >= 0 && first + 1 < p.h) return max_pool_3x3(p, lines, stride, row);
    }
    const bool square = p.kh == 2 && p.kw == 2 && p.sw == 2 && p.ph == 0 && p.pw == 0 && p.dh == 1 && p.dw == 1;
    if (!p.max && square && ring == 0 && y * p.sh + 2 <= p.h && p.ow * 2 <= p.w) {
        const float *upper = in + (size_t)y * p.sh * p.w * stride;
        return mean_pool_2x2(p, upper, upper + (size_t)p.w * stride, stride, row);
    }
    const int vectors = (p.c + N - 1) / N;
    const int top = y * p.sh - p.ph;
    const Clip tall = clip(top, p.kh, p.dh, p.h);
    const int rows = counted(p, tall, top, p.kh, p.h, p.ph);
    for (int x = 0; x < p.ow; x++) {
        const int left = x * p.sw - p.pw;
        const Clip wide = clip(left, p.kw, p.dw, p.w);
        const int numbers = rows * counted(p, wide, left, p.kw, p.w, p.pw);
        const F count = set1((float)numbers), part = set1(1.0f / (float)numbers);
        const bool exact = (numbers & (numbers - 1)) == 0;  // a power of two: its reciprocal rounds as the division does
        const size_t step = (size_t)p.dw * stride;
        float *to = row + (size_t)x * stride;
        for (int v = 0; v < vectors; v++) {
            F value = p.max ? set1(-__builtin_inff()) : zero();
            for (int i = tall.begin; i < tall.end; i++) {
                const int r = top + i * p.dh;
                const float *at = in + (size_t)(ring > 0 ? r % ring : r) * p.w * stride;
                at += (long)left * stride + (long)wide.begin * (long)step + v * N;
                if (p.max)
                    for (int j = wide.begin; j < wide.end; j++, at += step) value = max_nan(value, load(at));
                else
                    for (int j = wide.begin; j < wide.end; j++, at += step) value = add(value, load(at));
            }
            store(to + v * N, p.max ? value : exact ? mul(value, part) : div(value, count));
        }
    }
}

void global_mean(const float *in, int pixels, int stride, int channels, float *out) {
    const F count = set1((float)pixels);
    for (int c = 0; c < channels; c += N) {
        F sum = zero();
        for (int p = 0; p < pixels; p++) sum = add(sum, load(in + (size_t)p * stride + c));
        store(out + c, div(sum, count));
    }
}

// XNOR-Net's K, the mean of |x| over the channels and then over a window, is summed in double and rounded once at each of
// the two: whatever the order, the same number, here as in the trained network.
void abs_mean(const float *in, int pixels, int stride, int channels, float *out, int out_stride) {
    for (int p = 0; p < pixels; p++) {
        const float *x = in + (size_t)p * stride;
        double lanes[8] = {};
        int c = 0;
        for (; c + 8 <= channels; c += 8)
            for (int i = 0; i < 8; i++) lanes[i] += __builtin_fabsf(x[c + i]);
        double sum = 0;
        for (int i = 0; i < 8; i++) sum += lanes[i];
        for (; c < channels; c++) sum += __builtin_fabsf(x[c]);
        out[(size_t)p * out_stride] = (float)(sum / channels);
    }
}

}  // namespace
