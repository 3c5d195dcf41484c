// Sums of real layers of 1x1 (real/pointwise.inl) with the addresses of pixels as `Strides` has them.

namespace {

template <int I>
__attribute__((always_inline)) inline __m512 spread_pixel(const char *at, const Strides &s) {
    __m512 v;
    if constexpr (I == 0) __asm__("vbroadcastss (%[at]), %[v]" : [v] "=v"(v) : [at] "r"(at));
    else __asm__("vbroadcastss (%[at],%[x],%c[by]), %[v]" : [v] "=v"(v) : [at] "r"(at), [x] "r"(s.odd<I>()), [by] "i"(Strides::kScale<I>));
    return v;
}

template <int P, int... I>
__attribute__((always_inline)) inline void add_points_of(const float *in, long stride, int units, const float *w, __m512 (&sum)[P][2],
                                                         std::integer_sequence<int, I...>) {
    const Strides strides = Strides::of(stride * (long)sizeof(float));
    const char *at = settled(in);
    for (const char *end = at + (long)units * (long)sizeof(float); at != end; at += sizeof(float), w += 32) {
        const __m512 w0 = _mm512_load_ps(w), w1 = _mm512_load_ps(w + 16);
        const auto step = [&](auto i) __attribute__((always_inline)) {
            constexpr int kI = decltype(i)::value;
            const __m512 a = spread_pixel<kI>(at, strides);
            sum[kI][0] = _mm512_fmadd_ps(a, w0, sum[kI][0]), sum[kI][1] = _mm512_fmadd_ps(a, w1, sum[kI][1]);
        };
        (step(std::integral_constant<int, I>{}), ...);
    }
}

template <int P>
__attribute__((always_inline)) inline void add_points(const float *in, long stride, int units, const float *w, __m512 (&sum)[P][2]) {
    add_points_of<P>(in, stride, units, w, sum, std::make_integer_sequence<int, P>{});
}

}  // namespace
