// Pools and channel means over NHWC floats, a row of output at a time.

namespace {

// The mean divides by the window's size: with the padding (never beyond it), without it, or (box) always kh*kw.
void pool_row(const Pool &p, const float *in, int stride, int ring, int y, float *row) {
    const int vectors = (p.c + N - 1) / N;
    for (int x = 0; x < p.ow; x++) {
        const int top = y * p.sh - p.ph, left = x * p.sw - p.pw;
        float count = (float)(p.kh * p.kw);
        if (!p.box) {
            int tall = 0, wide = 0;
            for (int i = 0; i < p.kh; i++) {
                const int r = top + i;
                tall += p.include_pad ? r < p.h + p.ph : r >= 0 && r < p.h;
            }
            for (int j = 0; j < p.kw; j++) {
                const int s = left + j;
                wide += p.include_pad ? s < p.w + p.pw : s >= 0 && s < p.w;
            }
            count = (float)(tall * wide);
        }
        for (int v = 0; v < vectors; v++) {
            F value = p.max ? set1(-__builtin_inff()) : zero();
            for (int i = 0; i < p.kh; i++) {
                const int r = top + i * p.dh;
                if (r < 0 || r >= p.h) continue;
                const float *line = in + (size_t)(ring > 0 ? r % ring : r) * p.w * stride + v * N;
                for (int j = 0; j < p.kw; j++) {
                    const int s = left + j * p.dw;
                    if (s < 0 || s >= p.w) continue;
                    const F x0 = load(line + (size_t)s * stride);
                    value = p.max ? max_nan(value, x0) : add(value, x0);
                }
            }
            store(row + (size_t)x * stride + v * N, p.max ? value : div(value, set1(count)));
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
