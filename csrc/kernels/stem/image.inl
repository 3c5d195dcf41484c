// Convolutions over 16-bit whole numbers: the bytes of an image (and what whole.inl makes of floats).

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

}  // namespace
