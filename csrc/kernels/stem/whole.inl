// Convolutions over floats that a file says how to round to whole numbers (`int_conv2d`). Sums are exact, so that their order
// does not matter and every instruction set may have another one.

namespace {

// Floats rounded to 16 bits; the rest is as for an image's bytes. A NaN becomes the lowest number.
struct WholeDot : ImageDot {
    using Weight = int16_t;
    static constexpr int kPoints = kFloatTile;  // pixels of a tile of 1x1
    static void round(const float *in, int n, float steps, float limit, int16_t *out) {
        for (int i = 0; i < n; i++) {
            float v = in[i] * steps;
            v = v > -limit ? v : -limit;
            v = v < limit ? v : limit;
            v += 12582912.0f;  // 1.5 * 2^23: the lowest bits of the sum are v, rounded to nearest, halves to even
            uint32_t bits;
            __builtin_memcpy(&bits, &v, 4);
            out[i] = (int16_t)(uint16_t)bits;
        }
    }
    static void prepare(const Conv &k, const void *in, int row, int16_t *out, char *) {
        const bool inside = row >= 0 && row < k.h;
        const int left = k.pw * k.c, wide = k.w * k.c, total = k.cols * k.c;
        if (!inside) {
            __builtin_memset(out, 0, (size_t)(total + 1) * 2);
            return;
        }
        const float *from = (const float *)in + (size_t)row * k.w * k.in_stride;
        for (int i = 0; i < left; i++) out[i] = 0;
        if (k.in_stride == k.c) round(from, wide, k.steps, k.limit, out + left);
        else
            for (int x = 0; x < k.w; x++) round(from + (size_t)x * k.in_stride, k.c, k.steps, k.limit, out + left + x * k.c);
        for (int i = left + wide; i <= total; i++) out[i] = 0;
    }
    template <int P>
    __attribute__((always_inline)) static inline const int16_t *add(const int16_t *in, long stride, int units, const int16_t *w, I (&sum)[P][2]) {
        const int16_t *p[P];
        for (int i = 0; i < P; i++) p[i] = in + i * stride;
        for (int u = 0; u < units; u += 2, w += 4 * N) {
            const I w0 = load_pairs(w), w1 = load_pairs(w + 2 * N);
#pragma GCC unroll 16
            for (int i = 0; i < P; i++) {
                const I a = set1_pair(p[i] + u);
                sum[i][0] = dot_pairs(sum[i][0], a, w0), sum[i][1] = dot_pairs(sum[i][1], a, w1);
            }
        }
        return w;
    }
};

// The sums of P pixels from `pixel` on against a block of filters: stored as a tile, or finished in registers.
template <class D, int P>
void dot_whole(const Conv &k, const Epilogue &e, const typename D::Unit *in, int pixel, int block, bool ends, int32_t *result) {
    const auto *w = (const typename D::Weight *)((const char *)k.weights + (size_t)block * k.panel_bytes);
    for (int half = 0; half < kBlock; half += 2 * N) {
        I sum[P][2];
#pragma GCC unroll 16
        for (int i = 0; i < P; i++) sum[i][0] = sum[i][1] = zero_ints();
        w = D::template add<P>(in, k.c, k.segments[0].length, w, sum);
        if (ends) {
            const int c = block * kBlock + half;
            const F scale[2] = {load(k.scale + c), load(k.scale + c + N)};
            F v[P][2];
#pragma GCC unroll 16
            for (int i = 0; i < P; i++) {
                v[i][0] = mul(to_floats(add_ints(sum[i][0], k.shift + c)), scale[0]);
                v[i][1] = mul(to_floats(add_ints(sum[i][1], k.shift + c + N)), scale[1]);
            }
            if (k.bias)
#pragma GCC unroll 16
                for (int i = 0; i < P; i++) v[i][0] = add(v[i][0], load(k.bias + c)), v[i][1] = add(v[i][1], load(k.bias + c + N));
            end_points(e, v, pixel, c);
            continue;
        }
#pragma GCC unroll 16
        for (int i = 0; i < P; i++) store_ints(result + i * kBlock + half, sum[i][0]), store_ints(result + i * kBlock + half + N, sum[i][1]);
    }
}

template <class D, int P>
void whole_points(const Conv &k, const Epilogue &e, const typename D::Unit *in, int pixel, int n, int block, bool ends, int32_t *result) {
    if (n == P) return dot_whole<D, P>(k, e, in, pixel, block, ends, result);
    if constexpr (P > 1) whole_points<D, P - 1>(k, e, in, pixel, n, block, ends, result);
}

// Kernels of 1x1 with stride 1 read the rounded rows as one run of pixels: tiles as equal as there can be.
template <class D>
void conv_whole_of(const Conv &k, const Epilogue &e, const void *in, int y0, int y1, int b0, int b1, char *scratch, Prepared *prepared) {
    const bool point = k.kh == 1 && k.kw == 1 && k.sh == 1 && k.sw == 1 && k.ph == 0 && k.pw == 0 && k.segment_count == 1;
    if (!point) return conv_rows<D>(k, e, in, y0, y1, b0, b1, scratch, prepared);
    scratch = (char *)round_up((size_t)scratch, kLine);
    int32_t *result = (int32_t *)scratch;
    auto *rows = (typename D::Unit *)(scratch + tile_bytes(k));
    const bool ends = ends_in_registers(e);
    int pixels[D::kPoints];
    const int32_t *shift[D::kPoints];
    for (int i = 0; i < D::kPoints; i++) shift[i] = k.shift;
    for (int top = y0; top < y1; top += k.band) {
        const int bottom = top + k.band < y1 ? top + k.band : y1;
        bring_rows<D>(k, in, top, bottom, rows, nullptr, prepared);
        const int first = top * k.ow, count = (bottom - top) * k.ow, tiles = (count + D::kPoints - 1) / D::kPoints;
        for (int block = b0; block < b1; block++)
            for (int tile = 0; tile < tiles; tile++) {
                const int at = (int)((long)count * tile / tiles), n = (int)((long)count * (tile + 1) / tiles) - at;
                whole_points<D, D::kPoints>(k, e, rows + (size_t)at * k.c, first + at, n, block, ends, result);
                if (ends) continue;
                for (int i = 0; i < n; i++) pixels[i] = first + at + i;
                finish_tile(e, Dequantised{result, shift, k.scale, k.bias}, pixels, n, block * kBlock);
            }
    }
}

}  // namespace
