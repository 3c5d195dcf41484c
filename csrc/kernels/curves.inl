// Sigmoid, GELU and their like over a run of numbers: the operations of curves.cuh, the same in every engine, bit for bit.
// Included after an instruction set has defined the vector `Real` of `kReals` floats (a plain float is one of 1), `Whole` of
// its integers, and exact_fma, root and spread for them. XN_AT_LEAST and XN_AT_MOST may be defined where an instruction has them.
#define XN_CURVE __attribute__((always_inline)) inline
#define XN_ADD(a, b) ((a) + (b))
#define XN_SUB(a, b) ((a) - (b))
#define XN_MUL(a, b) ((a) * (b))
#define XN_DIV(a, b) ((a) / (b))
#define XN_FMA(a, b, c) exact_fma(a, b, c)
#define XN_SQRT(a) root(a)
#define XN_SET(a) spread(a)
#define XN_PICK(choice, yes, no) ((choice) ? (yes) : (no))
#ifndef XN_AT_LEAST
#define XN_AT_LEAST(x, least) XN_PICK((x) < (least), least, x)
#define XN_AT_MOST(x, most) XN_PICK((x) > (most), most, x)
#endif
#define XN_INT(a) bits_of<Whole>(a)
#define XN_FLOAT(a) bits_of<Real>(a)
#define XN_NUMBER(a) number_of(a)
#define XN_MINUS(a, b) wrapped_minus(a, b)
#define XN_SHIFT(a, n) wrapped_shift(a, n)
#define XN_INFINITY __builtin_inff()
#define XN_SIGN_BIT (-0x7fffffff - 1)

namespace {

using Choice = decltype(Real() < Real());

template <class To, class From>
XN_CURVE To bits_of(From from) {
    To to;
    static_assert(sizeof to == sizeof from, "the same bits");
    __builtin_memcpy(&to, &from, sizeof to);
    return to;
}
// Modulo 2**32: a NaN leads to any integer. (Vectors wrap around by themselves.)
template <class W, class V>
XN_CURVE W wrapped_minus(W a, V b) {
    if constexpr (kReals == 1) return (W)((unsigned)a - (unsigned)b);
    else return a - b;
}
template <class W>
XN_CURVE W wrapped_shift(W a, int n) {
    if constexpr (kReals == 1) return (W)((unsigned)a << n);
    else return a << n;
}
template <class W>
XN_CURVE Real number_of(W n) {
    if constexpr (kReals == 1) return (Real)n;
    else return __builtin_convertvector(n, Real);
}

#include "../../src/xnorpp/runtime/cuda/kernels/curves.cuh"

// values[i] = curve(values[i]); n is a multiple of 16.
void run_curve(int which, float parameter, float *values, int n) {
    const Real alpha = spread(parameter);
    switch (which) {
#define XN_CASE(number, body)                                \
    case number:                                             \
        for (int i = 0; i < n; i += kReals) {                \
            Real x;                                          \
            __builtin_memcpy(&x, values + i, sizeof x);      \
            x = body;                                        \
            __builtin_memcpy(values + i, &x, sizeof x);      \
        }                                                    \
        break;
        XN_EACH_CURVE(XN_CASE)
#undef XN_CASE
    }
}

}  // namespace
