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

// Rows or columns a mean counts: with the padding (never beyond it), without it, or (box) all of the kernel.
inline int counted(const Pool &p, const Clip &inside, int first, int kernel, int size, int padding) {
    if (p.box) return kernel;
    if (!p.include_pad) return inside.end - inside.begin;
    const int end = size + padding - first;
    return end < kernel ? end : kernel;
}

void pool_row(const Pool &p, const float *in, int stride, int ring, int y, float *row) {
    const int vectors = (p.c + N - 1) / N;
    const int top = y * p.sh - p.ph;
    const Clip tall = clip(top, p.kh, p.dh, p.h);
    const int rows = counted(p, tall, top, p.kh, p.h, p.ph);
    for (int x = 0; x < p.ow; x++) {
        const int left = x * p.sw - p.pw;
        const Clip wide = clip(left, p.kw, p.dw, p.w);
        const F count = set1((float)(rows * counted(p, wide, left, p.kw, p.w, p.pw)));
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
            store(to + v * N, p.max ? value : div(value, count));
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

void abs_mean(const float *in, int pixels, int stride, int channels, float *out, int out_stride) {
    for (int p = 0; p < pixels; p++) {
        const float *x = in + (size_t)p * stride;
        F sums = zero();
        int c = 0;
        for (; c + N <= channels; c += N) sums = add(sums, absolute(load(x + c)));
        alignas(64) float lanes[N];
        store(lanes, sums);
        float sum = 0;
        for (int i = 0; i < N; i++) sum += lanes[i];
        for (; c < channels; c++) sum += x[c] < 0 ? -x[c] : x[c];
        out[(size_t)p * out_stride] = sum / (float)channels;
    }
}

}  // namespace
