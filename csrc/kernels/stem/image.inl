// Convolutions over 16-bit whole numbers: the bytes of an image, and floats that a file says how to round.

namespace {

// uint8 images as 16-bit numbers: neighbouring numbers in pairs, two products a 32-bit lane.
struct ImageDot {
    using Unit = int16_t;
    using Result = int32_t;
    static constexpr int kTile = kFloatTile, kPair = 1, kSlack = 16;
    static constexpr bool kBits = false;
    static void prepare(const Conv &k, const void *in, int row, int16_t *out, char *) {
        const bool inside = row >= 0 && row < k.h;
        const int left = k.pw * k.c, wide = k.w * k.c, total = k.cols * k.c;
        if (!inside) {
            __builtin_memset(out, 0, (size_t)(total + 1) * 2);
            return;
        }
        const uint8_t *bytes = (const uint8_t *)in + (size_t)row * wide;
        for (int i = 0; i < left; i++) out[i] = 0;
        for (int i = 0; i < wide; i++) out[left + i] = bytes[i];
        for (int i = left + wide; i <= total; i++) out[i] = 0;
    }
    static void dot(const int16_t *const *bases, int, const Segment *segments, int count, const void *weights,
                    int32_t *result) {
        const int16_t *w = (const int16_t *)weights;
        for (int half = 0; half < kBlock; half += 2 * N) {
            I sum[kTile][2];
            for (int i = 0; i < kTile; i++) sum[i][0] = sum[i][1] = zero_ints();
            for (int s = 0; s < count; s++) {
                const int16_t *p[kTile];
                for (int i = 0; i < kTile; i++) p[i] = bases[i] + segments[s].offset;
                const int length = segments[s].length;
                for (int u = 0; u < length; u += 2, w += 4 * N) {
                    const I w0 = load_pairs(w), w1 = load_pairs(w + 2 * N);
#pragma GCC unroll 16
                    for (int i = 0; i < kTile; i++) {
                        const I a = set1_pair(p[i] + u);
                        sum[i][0] = dot_pairs(sum[i][0], a, w0);
                        sum[i][1] = dot_pairs(sum[i][1], a, w1);
                    }
                }
            }
            for (int i = 0; i < kTile; i++) {
                store_ints(result + i * kBlock + half, sum[i][0]);
                store_ints(result + i * kBlock + half + N, sum[i][1]);
            }
        }
    }
};

// Floats rounded to 16 bits; the rest is as for an image's bytes. A NaN becomes the lowest number.
struct WholeDot : ImageDot {
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
};

}  // namespace
