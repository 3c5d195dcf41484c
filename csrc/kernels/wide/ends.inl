// The end of a binary layer from the sums of its bits in registers: `is_usual` states which line it is.

namespace {

// Whether twice each number is a number.
bool have_doubles(const float *numbers, int n) {
    uint32_t most = 0;
    for (int i = 0; i < n; i++) {
        uint32_t bits;
        __builtin_memcpy(&bits, numbers + i, 4);
        most = (bits & 0x7fffffffu) > most ? bits & 0x7fffffffu : most;
    }
    return most < 0x7f000000u;
}

// That line, from counts in registers, by halves of the dot products: what `fused_vectors` does from memory, rounded alike. A factor of a
// pixel times the dot product is twice the factor times the half.
template <int P>
__attribute__((always_inline)) inline void finish_in_registers(const Run &run, int c, bool alike, __m512i (&counts)[P]) {
    const Epilogue &e = *run.line;
    const __m512 mult = _mm512_loadu_ps(e.mult + c), shift = _mm512_loadu_ps(e.add + c), slope = _mm512_loadu_ps(e.slope + c);
    const __m512i flip = _mm512_loadu_si512(e.flip + c);
    const __m512 threshold = _mm512_loadu_ps(e.threshold + c);
    const float *residual = e.residual + c;
    float *out = e.out + c;
    const long residual_step = e.residual_stride, step = e.out_stride, bits_step = e.bits_stride;
    const auto half_base = [&](int i) __attribute__((always_inline)) {
        return _mm512_cvtps_epi32(mul(load(run.base + c + (size_t)run.cases[i] * run.channels), set1(0.5f)));
    };
    const __m512i first = half_base(0);
    if (alike) {
#pragma GCC unroll 12
        for (int i = 0; i < P; i++) counts[i] = _mm512_sub_epi32(first, counts[i]);
    } else {
#pragma GCC unroll 12
        for (int i = 0; i < P; i++) counts[i] = _mm512_sub_epi32(half_base(i), counts[i]);
    }
    __m512 v[P];
#pragma GCC unroll 12
    for (int i = 0; i < P; i++, residual += residual_step, out += step) {
        v[i] = multiply_add(mul(_mm512_cvtepi32_ps(counts[i]), set1(run.maps[i])), mult, shift);
        v[i] = add(prelu(v[i], slope), load(residual));
        store(out, v[i]);
    }
    if (_mm512_test_epi32_mask(flip, flip))  // seldom: most layers turn no channel round
#pragma GCC unroll 12
        for (int i = 0; i < P; i++) v[i] = xor_sign(v[i], _mm512_castsi512_ps(flip));
    char *bits = (char *)e.bits + c / 8;
#pragma GCC unroll 12
    for (int i = 0; i < P; i++, bits += bits_step) _store_mask16((__mmask16 *)bits, _mm512_cmp_ps_mask(v[i], threshold, _CMP_GT_OQ));
}

// Every other fused line, from counts in registers, one pass for each of its operations. `line` begins at the first pixel.
template <int P>
void end_line(const Epilogue &line, const Run &run, int c, __m512i (&counts)[P]) {
    const Epilogue e = line;  // a copy: a store might change the original
    __m512 v[P];
    const auto each = [&](auto change) __attribute__((always_inline)) {
#pragma GCC unroll 12
        for (int i = 0; i < P; i++) v[i] = change(i);
    };
    const auto multiplied = [&](const float *mult, const float *add) __attribute__((always_inline)) {
        const __m512 factor = load(mult + c), shift = load(add + c);
        each([&](int i) __attribute__((always_inline)) { return multiply_add(v[i], factor, shift); });
    };
    const auto activated = [&](Act act, const float *slopes, float lo, float hi) __attribute__((always_inline)) {
        if (act == Act::Relu) {
            each([&](int i) __attribute__((always_inline)) { return relu(v[i]); });
        } else if (act == Act::Hardtanh) {
            const __m512 least = set1(lo), most = set1(hi);
            each([&](int i) __attribute__((always_inline)) { return clamp(v[i], least, most); });
        } else if (act != Act::None) {
            const __m512 slope = load(slopes + c);
            each([&](int i) __attribute__((always_inline)) { return prelu(v[i], slope); });
        }
    };
    each([&](int i) __attribute__((always_inline)) {
        return multiply_add(_mm512_cvtepi32_ps(counts[i]), set1(-2.0f), load(run.base + c + (size_t)run.cases[i] * run.channels));
    });
    if (e.map) each([&](int i) __attribute__((always_inline)) { return mul(v[i], set1(e.map[i])); });
    if (e.mult) multiplied(e.mult, e.add);
    activated(e.act, e.slope, e.lo, e.hi);
    if (e.residual) each([&](int i) __attribute__((always_inline)) { return add(v[i], load(e.residual + c + (size_t)i * e.residual_stride)); });
    if (e.mult2) multiplied(e.mult2, e.add2);
    activated(e.act2, e.slope2, e.lo2, e.hi2);
    if (e.mult3) multiplied(e.mult3, e.add3);
    if (e.out) {
        float *out = e.out + c;
#pragma GCC unroll 12
        for (int i = 0; i < P; i++, out += e.out_stride) store(out, v[i]);
    }
    if (!e.bits) return;
    if (e.sign_map) each([&](int i) __attribute__((always_inline)) { return mul(v[i], set1(e.sign_map[i])); });
    const __m512 flip = load((const float *)e.flip + c), threshold = load(e.threshold + c);
    char *bits = (char *)e.bits + c / 8;
#pragma GCC unroll 12
    for (int i = 0; i < P; i++, bits += e.bits_stride)
        _store_mask16((__mmask16 *)bits, _mm512_cmp_ps_mask(xor_sign(v[i], flip), threshold, _CMP_GT_OQ));
}

}  // namespace
