// Real convolutions with many groups, depthwise ones first of all: a group has too few filters to fill a block of 32, so a
// block takes 32 filters of neighbouring groups and each lane its own inputs.
//
// The rows of the image that an output row needs lie in a ring in the thread's scratch, for one block of filters at a time:
// [row][column of the padded image][input of a filter][32 lanes], where lane l of block b has the inputs of filter 32*b + l.
// For a depthwise layer that is a copy, which pays: channels of a pixel lie 4*c bytes apart, and where c is a large power of
// two neighbouring pixels would push each other out of the first-level cache. The padding is zeros there and needs no case.
//
// Sums go over kernel rows, columns and inputs in this order with one fused multiply-add each, as every real convolution's.

namespace {

// A row of the image, or zeros where it lies outside, as lanes of the block whose filters begin at c0.
inline void bring_lanes(const Conv &k, const float *in, int row, int c0, float *out) {
    const int pixel = k.fan * kBlock;
    if (row < 0 || row >= k.h) {
        __builtin_memset(out, 0, (size_t)k.cols * pixel * sizeof(float));
        return;
    }
    __builtin_memset(out, 0, (size_t)k.pw * pixel * sizeof(float));
    out += (size_t)k.pw * pixel;
    const float *from = in + (size_t)row * k.w * k.in_stride;
    const int left = k.o - c0 < kBlock ? k.o - c0 : kBlock;
    if (k.fan == 1 && k.og == 1 && k.in_stride % 16 == 0) {
        const int vectors = (left + N - 1) / N;
        from += c0;
        for (int x = 0; x < k.w; x++, from += k.in_stride, out += kBlock)
            for (int v = 0; v < vectors; v++) store(out + v * N, load(from + v * N));
    } else {
        int first[kBlock];
        for (int l = 0; l < kBlock; l++) first[l] = (c0 + (l < left ? l : 0)) / k.og * k.fan;
        for (int x = 0; x < k.w; x++, from += k.in_stride)
            for (int f = 0; f < k.fan; f++, out += kBlock)
                for (int l = 0; l < kBlock; l++) out[l] = from[first[l] + f];
    }
    __builtin_memset(out, 0, (size_t)(k.cols - k.pw - k.w) * pixel * sizeof(float));
}

// T neighbouring pixels by 32 filters of one input each. The kernel's width and the stride are known: each number of a row
// is loaded once and goes to every pixel that sees it.
template <int T, int KW, int SW>
void grouped_known(const Conv &k, const float *const *rows, const float *w, int vectors, float *result) {
    for (int v = 0; v < vectors; v++) {
        F sum[T];
        for (int t = 0; t < T; t++) sum[t] = zero();
        for (int i = 0; i < k.kh; i++) {
            const float *p = rows[i] + v * N;
            F tap[KW];
#pragma GCC unroll 8
            for (int j = 0; j < KW; j++) tap[j] = load(w + (size_t)(i * KW + j) * kBlock + v * N);
#pragma GCC unroll 32
            for (int x = 0; x < (T - 1) * SW + KW; x++) {
                const F a = load(p + x * kBlock);
#pragma GCC unroll 8
                for (int t = 0; t < T; t++)
                    if (x >= t * SW && x < t * SW + KW) sum[t] = fma(a, tap[x - t * SW], sum[t]);
            }
        }
#pragma GCC unroll 8
        for (int t = 0; t < T; t++) store(result + t * kBlock + v * N, sum[t]);
    }
}

template <int T>
void grouped_any(const Conv &k, const float *const *rows, const float *w, int vectors, float *result) {
    const long across = (long)k.sw * k.fan * kBlock;
    for (int v = 0; v < vectors; v++) {
        F sum[T];
        for (int t = 0; t < T; t++) sum[t] = zero();
        const float *tap = w + v * N;
        for (int i = 0; i < k.kh; i++)
            for (int j = 0; j < k.kw; j++) {
                const float *p = rows[i] + (long)j * k.dw * k.fan * kBlock + v * N;
                for (int f = 0; f < k.fan; f++, p += kBlock, tap += kBlock) {
                    const F weight = load(tap);
#pragma GCC unroll 8
                    for (int t = 0; t < T; t++) sum[t] = fma(load(p + t * across), weight, sum[t]);
                }
            }
#pragma GCC unroll 8
        for (int t = 0; t < T; t++) store(result + t * kBlock + v * N, sum[t]);
    }
}

using GroupedTile = void (*)(const Conv &, const float *const *, const float *, int, float *);

template <int T>
GroupedTile grouped_tile(const Conv &k) {
    if (k.fan == 1 && k.dw == 1) {
        if (k.kw == 3 && k.sw == 1) return grouped_known<T, 3, 1>;
        if (k.kw == 3 && k.sw == 2) return grouped_known<T, 3, 2>;
        if (k.kw == 5 && k.sw == 1) return grouped_known<T, 5, 1>;
        if (k.kw == 5 && k.sw == 2) return grouped_known<T, 5, 2>;
        if (k.kw == 7 && k.sw == 1) return grouped_known<T, 7, 1>;
    }
    return grouped_any<T>;
}

void conv_grouped(const Conv &k, const Epilogue &e, const void *in, int y0, int y1, int b0, int b1, char *scratch, Prepared *) {
    scratch = (char *)round_up((size_t)scratch, kLine);
    float *result = (float *)scratch, *ring = (float *)(scratch + tile_bytes(k));
    const float **rows = (const float **)round_up((size_t)(ring + grouped_floats(k)), kLine);
    const int width = k.tile, held = grouped_ring(k);
    const GroupedTile tile = width == 7 ? grouped_tile<7>(k) : grouped_tile<8>(k);
    const auto place = [&](int row) { return ring + (size_t)((row + k.ph) % held) * k.row_units; };
    for (int block = b0; block < b1; block++) {
        const int c0 = block * kBlock, vectors = vectors_in(e, c0);
        const float *panel = (const float *)((const char *)k.weights + (size_t)block * k.panel_bytes);
        int pixels[kMaxTile], count = 0, ready = y0 * k.sh - k.ph;
        const auto finish = [&] {
            finish_tile(e, Biased{result, k.bias}, pixels, count, c0);
            count = 0;
        };
        for (int y = y0; y < y1; y++) {
            const int first = y * k.sh - k.ph, end = first + (k.kh - 1) * k.dh + 1;
            if (ready < first) ready = first;
            for (; ready < end; ready++) bring_lanes(k, (const float *)in, ready, c0, place(ready));
            for (int x = 0; x < k.ow; x += width) {
                const int n = k.ow - x < width ? k.ow - x : width;
                for (int i = 0; i < k.kh; i++) rows[i] = place(first + i * k.dh) + (size_t)x * k.sw * k.fan * kBlock;
                tile(k, rows, panel, vectors, result + count * kBlock);
                for (int t = 0; t < n; t++) pixels[count++] = y * k.ow + x + t;
                if (count + width > kMaxTile) finish();
            }
        }
        if (count) finish();
    }
}

// weight [o][fan][kh*kw] -> [block][tap][fan][32]
void pack_grouped(const Conv &k, const float *weight, void *panels) {
    const int taps = k.kh * k.kw;
    __builtin_memset(panels, 0, (size_t)k.blocks * k.panel_bytes);
    for (int o = 0; o < k.o; o++) {
        float *panel = (float *)((char *)panels + (size_t)(o / kBlock) * k.panel_bytes) + o % kBlock;
        for (int f = 0; f < k.fan; f++)
            for (int tap = 0; tap < taps; tap++)
                panel[((size_t)tap * k.fan + f) * kBlock] = weight[((size_t)o * k.fan + f) * taps + tap];
    }
}

}  // namespace
