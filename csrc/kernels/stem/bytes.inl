// Floats that are rounded to 8 bits (`int_conv2d` with a limit of at most 127), for AVX-512 with VNNI alone: vpdpbusd adds four
// products to a 32-bit lane, twice as many as vpdpwssd. It multiplies unsigned by signed numbers, so a rounded number is stored
// 128 higher; what that adds to a sum, 128 times all weights of the filter, `Conv::shift` takes away. Padding is 128 as well.
// AVX2 has nothing that is faster than pairs of 16-bit numbers: vpmaddubsw saturates at two products of 8 bits, and where signs
// are moved to the weights so that it does not, it takes as many multiplications (with vpmaddwd for its sums) and more of the rest.

namespace {

inline void round_bytes(const float *in, int n, float steps, float limit, uint8_t *out) {
    const __m512 factor = set1(steps), high = set1(limit), low = set1(-limit);
    for (int i = 0; i < n; i += 16) {
        const __mmask16 real = n - i >= 16 ? 0xffff : (__mmask16)((1u << (n - i)) - 1);
        // The larger one of a NaN and a number, in this order, is the number.
        const __m512 v = _mm512_min_ps(_mm512_max_ps(_mm512_mul_ps(_mm512_maskz_loadu_ps(real, in + i), factor), low), high);
        const __m128i whole = _mm512_cvtepi32_epi8(_mm512_cvt_roundps_epi32(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
        _mm_mask_storeu_epi8(out + i, real, _mm_xor_si128(whole, _mm_set1_epi8(-128)));
    }
}

template <int P, int... I>
__attribute__((always_inline)) inline const int8_t *add_quads(const uint8_t *in, long stride, int units, const int8_t *w, __m512i (&sum)[P][2],
                                                              std::integer_sequence<int, I...>) {
    const Strides strides = Strides::of(stride);
    const char *at = settled(in);
    for (const char *end = at + units; at != end; at += 4, w += 4 * kBlock) {
        const __m512i w0 = _mm512_load_si512(w), w1 = _mm512_load_si512(w + 2 * kBlock);
        const auto step = [&](auto i) __attribute__((always_inline)) {
            constexpr int kI = decltype(i)::value;
            const __m512i a = _mm512_castps_si512(spread_pixel<kI>(at, strides));
            sum[kI][0] = _mm512_dpbusd_epi32(sum[kI][0], a, w0), sum[kI][1] = _mm512_dpbusd_epi32(sum[kI][1], a, w1);
        };
        (step(std::integral_constant<int, I>{}), ...);
    }
    return w;
}

struct ByteDot {
    using Unit = uint8_t;
    using Weight = int8_t;
    using Result = int32_t;
    static constexpr int kTile = kFloatTile, kPair = 1, kSlack = 64, kPoints = 14;
    static constexpr bool kBits = false;
    static constexpr int kZero = 128;

    static void prepare(const Conv &k, const void *in, int row, uint8_t *out, char *) {
        const bool inside = row >= 0 && row < k.h;
        const int left = k.pw * k.c, wide = k.w * k.c, total = k.cols * k.c;
        if (!inside) {
            __builtin_memset(out, kZero, (size_t)total);
            return;
        }
        const float *from = (const float *)in + (size_t)row * k.w * k.in_stride;
        __builtin_memset(out, kZero, (size_t)left);
        if (k.in_stride == k.c) round_bytes(from, wide, k.steps, k.limit, out + left);
        else
            for (int x = 0; x < k.w; x++) round_bytes(from + (size_t)x * k.in_stride, k.c, k.steps, k.limit, out + left + x * k.c);
        __builtin_memset(out + left + wide, kZero, (size_t)(total - left - wide));
    }

    // Panels: [unit / 4][32][4].
    static void dot(const uint8_t *const *bases, int, const Segment *segments, int count, const void *panel, int32_t *result) {
        const int8_t *w = (const int8_t *)panel;
        I sum[kTile][2];
        for (int i = 0; i < kTile; i++) sum[i][0] = sum[i][1] = zero_ints();
        for (int s = 0; s < count; s++) {
            const uint8_t *p[kTile];
            for (int i = 0; i < kTile; i++) p[i] = bases[i] + segments[s].offset;
            const int length = segments[s].length;
            for (int u = 0; u < length; u += 4, w += 4 * kBlock) {
                const I w0 = _mm512_load_si512(w), w1 = _mm512_load_si512(w + 2 * kBlock);
#pragma GCC unroll 16
                for (int i = 0; i < kTile; i++) {
                    int32_t quad;
                    __builtin_memcpy(&quad, p[i] + u, 4);
                    const I a = _mm512_set1_epi32(quad);
                    sum[i][0] = _mm512_dpbusd_epi32(sum[i][0], a, w0), sum[i][1] = _mm512_dpbusd_epi32(sum[i][1], a, w1);
                }
            }
        }
        for (int i = 0; i < kTile; i++) store_ints(result + i * kBlock, sum[i][0]), store_ints(result + i * kBlock + N, sum[i][1]);
    }

    template <int P>
    __attribute__((always_inline)) static inline const int8_t *add(const uint8_t *in, long stride, int units, const int8_t *w, I (&sum)[P][2]) {
        return add_quads<P>(in, stride, units, w, sum, std::make_integer_sequence<int, P>{});
    }
};

void pack_bytes(const Conv &k, const int16_t *weight, void *panels) {
    const int taps = k.kh * k.kw, run = (k.kw * k.fan + 3) / 4 * 4;
    each_weight(k, panels, k.fan, [&](char *panel, int o, int lane, int tap, int j) {
        const size_t unit = (size_t)(tap / k.kw) * run + (tap % k.kw) * k.fan + j;
        ((int8_t *)panel)[(unit / 4 * kBlock + lane) * 4 + unit % 4] = (int8_t)weight[((size_t)o * k.fan + j) * taps + tap];
    });
}

constexpr Kernels with_bytes(Kernels kernels) {
    kernels.bytes = {1, 1, kBlock, ByteDot::kSlack, 4};
    kernels.pack_bytes = pack_bytes, kernels.conv_bytes = conv_whole_of<ByteDot>;
    return kernels;
}

}  // namespace
