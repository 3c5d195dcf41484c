// Real convolutions of 1x1 with stride 1 over whole pixels: the shortcuts of downsampling blocks, pointwise layers. Their prepared
// rows would be a copy of the input, so it is read where it lies, and pixels of different rows share tiles: as equal ones as
// there can be, so that none computes what is thrown away. With sixteen lanes other kernels run through the rows of the output in
// the same way, from prepared rows. Sums are those of `FloatDot`, in its order.

namespace {

inline bool is_pointwise(const Conv &k) {
    return k.kh == 1 && k.kw == 1 && k.sh == 1 && k.sw == 1 && k.ph == 0 && k.pw == 0 && k.groups == 1 && k.in_stride == k.c &&
           k.segment_count == 1 && k.oh * k.ow > 1;
}

constexpr int kPointTile = N == 16 ? 14 : FloatDot::kTile;

// Sums of P pixels, each as many floats after the one before as `stride`. An instruction set may have one of its own.
template <int P, class V>
__attribute__((always_inline)) inline void add_points(const float *in, long stride, int units, const float *w, V (&sum)[P][2]) {
    const float *p[P];
    for (int i = 0; i < P; i++) p[i] = in + i * stride;
    for (int u = 0; u < units; u++, w += 2 * N) {
        const V w0 = load(w), w1 = load(w + N);
#pragma GCC unroll 16
        for (int i = 0; i < P; i++) {
            const V a = set1(p[i][u]);
            sum[i][0] = fma(a, w0, sum[i][0]), sum[i][1] = fma(a, w1, sum[i][1]);
        }
    }
}

// The sums of P pixels from `pixel` on against a block of filters: stored as a tile, or finished in registers.
template <int P>
void dot_points(const Conv &k, const Epilogue &e, const float *in, int pixel, int block, bool ends, float *result) {
    const float *w = (const float *)((const char *)k.weights + (size_t)block * k.panel_bytes);
    const long stride = (long)k.sw * k.c;
    for (int half = 0; half < kBlock; half += 2 * N) {
        F sum[P][2];
#pragma GCC unroll 16
        for (int i = 0; i < P; i++) sum[i][0] = sum[i][1] = zero();
        for (int s = 0; s < k.segment_count; s++) {
            add_points<P>(in + k.segments[s].offset, stride, k.segments[s].length, w, sum);
            w += (size_t)k.segments[s].length * 2 * N;
        }
        if (ends) {
            const int c = block * kBlock + half;
            const F bias[2] = {load(k.bias + c), load(k.bias + c + N)};
#pragma GCC unroll 16
            for (int i = 0; i < P; i++) sum[i][0] = add(sum[i][0], bias[0]), sum[i][1] = add(sum[i][1], bias[1]);
            end_points(e, sum, pixel, c);
            continue;
        }
#pragma GCC unroll 16
        for (int i = 0; i < P; i++) store(result + i * kBlock + half, sum[i][0]), store(result + i * kBlock + half + N, sum[i][1]);
    }
}

template <int P>
void points(const Conv &k, const Epilogue &e, const float *in, int pixel, int n, int block, bool ends, float *result) {
    if (n == P) return dot_points<P>(k, e, in, pixel, block, ends, result);
    if constexpr (P > 1) points<P - 1>(k, e, in, pixel, n, block, ends, result);
}

// Whether rows of the output are worth a run of their own. One pixel is summed in another order.
inline bool in_runs(const Conv &k) { return N == 16 && k.groups == 1 && k.dw == 1 && k.segment_count == k.kh && k.ow >= 7; }

// `count` pixels from `first` on, whose windows begin at `in`, as tiles.
inline void conv_points(const Conv &k, const Epilogue &e, const float *in, int first, int count, int block, bool ends, float *result) {
    const int tiles = (count + kPointTile - 1) / kPointTile;
    for (int tile = 0; tile < tiles; tile++) {
        const int at = (int)((long)count * tile / tiles), n = (int)((long)count * (tile + 1) / tiles) - at;
        points<kPointTile>(k, e, in + (size_t)at * k.sw * k.c, first + at, n, block, ends, result);
        if (ends) continue;
        int pixels[kPointTile];
        for (int i = 0; i < n; i++) pixels[i] = first + at + i;
        finish_tile(e, Biased{result, k.bias}, pixels, n, block * kBlock);
    }
}

void conv_float(const Conv &k, const Epilogue &e, const void *in, int y0, int y1, int b0, int b1, char *scratch, Prepared *prepared) {
    const bool point = is_pointwise(k), ends = ends_in_registers(e);
    if (!point && !in_runs(k)) return conv_rows<FloatDot>(k, e, in, y0, y1, b0, b1, scratch, prepared);
    scratch = (char *)round_up((size_t)scratch, kLine);
    float *result = (float *)scratch, *rows = (float *)(scratch + tile_bytes(k));
    if (point) {
        const float *from = (const float *)in + (size_t)y0 * k.ow * k.c;
        for (int block = b0; block < b1; block++) conv_points(k, e, from, y0 * k.ow, (y1 - y0) * k.ow, block, ends, result);
        return;
    }
    for (int top = y0; top < y1; top += k.band) {
        const int bottom = top + k.band < y1 ? top + k.band : y1;
        bring_rows<FloatDot>(k, in, top, bottom, rows, nullptr, prepared);
        for (int block = b0; block < b1; block++)
            for (int y = top; y < bottom; y++)
                conv_points(k, e, rows + (size_t)(y - top) * k.sh * k.row_units, y * k.ow, k.ow, block, ends, result);
    }
}

}  // namespace
