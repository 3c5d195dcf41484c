// Functions of one number that are no rational ones, in float32: one sequence of rounded operations for every engine, so that
// all of them give the same bits (docs/format.md states the errors). The CPU kernels include this file too
// (csrc/kernels/curves.inl), and runtime/reference/curves.py is the same in numpy.
//
// Written for one number or a vector of them: Real, Whole (its integers), Choice (what a comparison gives), XN_SET(constant),
// XN_PICK(choice, yes, no). XN_CURVE is what stands before a function; XN_ADD, XN_SUB, XN_MUL, XN_DIV, XN_SQRT round once,
// XN_FMA(a, b, c) is a*b + c rounded once; XN_AT_LEAST and XN_AT_MOST leave a NaN; XN_INT and XN_FLOAT pass bits, XN_NUMBER
// converts; XN_MINUS and XN_SHIFT (to the left) wrap around. XN_TIMES_POWER(p, n, whole), p * 2**n for p near 1, may be defined
// where one instruction gives it, rounded once.
#pragma once

// The nearest whole number n to x/ln(2) and what is left, |r| <= 0.35; n is at most 2**21 in magnitude.
struct Reduced {
    Real number, rest;
    Whole whole;
};
XN_CURVE Reduced reduce_exponent(Real x) {
    const Real shifted = XN_FMA(x, XN_SET(1.44269504088896341f), XN_SET(12582912.0f));  // 1.5*2**23: the last bit is worth 1
    const Real n = XN_SUB(shifted, XN_SET(12582912.0f));
    const Real r = XN_FMA(n, XN_SET(-0.693359375f), x);
    return {n, XN_FMA(n, XN_SET(2.12194440054690583e-4f), r), XN_MINUS(XN_INT(shifted), 0x4b400000)};
}
// (exp(r) - 1 - r) / r**2
XN_CURVE Real exponent_tail(Real r) {
    Real q = XN_SET(0.0013951719738543034f);
    q = XN_FMA(q, r, XN_SET(0.008369598537683487f));
    q = XN_FMA(q, r, XN_SET(0.0416661873459816f));
    q = XN_FMA(q, r, XN_SET(0.16666512191295624f));
    return XN_FMA(q, r, XN_SET(0.5f));
}
XN_CURVE Real power_of_two(Whole n) { return XN_FLOAT(XN_SHIFT(n + 127, 23)); }

#ifndef XN_TIMES_POWER
#define XN_TIMES_POWER(p, n, whole) times_power(p, whole)
// In two steps, for 2**128 and what is below 2**-126: the first is exact. Of the two exponents each has its 127.
XN_CURVE Real times_power(Real p, Whole n) {
    const Whole both = n + 254, half = both >> 1;
    return XN_MUL(XN_MUL(p, XN_FLOAT(XN_SHIFT(half, 23))), XN_FLOAT(XN_SHIFT(both - half, 23)));
}
#endif

XN_CURVE Real curve_exp(Real x) {
    const Real low = XN_AT_LEAST(x, XN_SET(-104.0f));
    const Reduced e = reduce_exponent(XN_AT_MOST(low, XN_SET(89.0f)));
    const Real p = XN_FMA(XN_FMA(exponent_tail(e.rest), e.rest, XN_SET(1.0f)), e.rest, XN_SET(1.0f));
    return XN_TIMES_POWER(p, e.number, e.whole);
}

// exp(x) - 1 for x <= 0.
XN_CURVE Real curve_expm1(Real x) {
    const Reduced e = reduce_exponent(XN_AT_LEAST(x, XN_SET(-30.0f)));
    const Real scale = power_of_two(e.whole);
    return XN_FMA(scale, XN_FMA(XN_MUL(e.rest, e.rest), exponent_tail(e.rest), e.rest), XN_SUB(scale, XN_SET(1.0f)));
}

// For x > 0 that is no subnormal.
XN_CURVE Real log_of_normal(Real x) {
    const Whole bits = XN_INT(x), above = XN_MINUS(bits, 0x3f3504f3);  // sqrt(1/2)
    const Whole n = above >> 23;
    const Real f = XN_SUB(XN_FLOAT(XN_MINUS(bits, XN_SHIFT(n, 23))), XN_SET(1.0f)), whole = XN_NUMBER(n), square = XN_MUL(f, f);
    Real q = XN_SET(0.06746640801429749f);
    q = XN_FMA(q, f, XN_SET(-0.11675652116537094f));
    q = XN_FMA(q, f, XN_SET(0.11888162046670914f));
    q = XN_FMA(q, f, XN_SET(-0.1240558922290802f));
    q = XN_FMA(q, f, XN_SET(0.14219552278518677f));
    q = XN_FMA(q, f, XN_SET(-0.1666799634695053f));
    q = XN_FMA(q, f, XN_SET(0.2000211924314499f));
    q = XN_FMA(q, f, XN_SET(-0.25000008940696716f));
    q = XN_FMA(q, f, XN_SET(0.3333331346511841f));
    const Real tail = XN_FMA(XN_MUL(square, f), q, XN_MUL(whole, XN_SET(-2.12194440054690583e-4f)));
    return XN_FMA(whole, XN_SET(0.693359375f), XN_ADD(XN_FMA(square, XN_SET(-0.5f), tail), f));
}

XN_CURVE Real curve_log(Real x) {
    const Real infinite = XN_SET(XN_INFINITY);
    const Choice small = x < XN_SET(1.17549435e-38f);
    const Real scaled = XN_MUL(x, XN_SET(8388608.0f)), y = log_of_normal(XN_PICK(small, scaled, x));
    const Real found = XN_PICK(small, XN_SUB(y, XN_SET(15.9423847f)), y);
    const Real upper = XN_PICK(x < infinite, found, x);  // infinity and NaN
    const Real lower = XN_PICK(x < XN_SET(0.0f), XN_SUB(infinite, infinite), x);  // NaN
    return XN_PICK(x > XN_SET(0.0f), upper, XN_PICK(x == XN_SET(0.0f), -infinite, lower));
}

// log(1 + u) for 0 <= u <= 1.
XN_CURVE Real log_of_one_more(Real u) {
    const Real y = XN_ADD(XN_SET(1.0f), u), lost = XN_SUB(u, XN_SUB(y, XN_SET(1.0f)));
    return XN_ADD(log_of_normal(y), XN_DIV(lost, y));
}

XN_CURVE Real magnitude_of(Real x) { return XN_FLOAT(XN_INT(x) & 0x7fffffff); }
XN_CURVE Real with_sign_of(Real x, Real sign) {
    return XN_FLOAT((XN_INT(x) & 0x7fffffff) | (XN_INT(sign) & XN_SIGN_BIT));
}

XN_CURVE Real curve_sigmoid(Real x) { return XN_DIV(XN_SET(1.0f), XN_ADD(XN_SET(1.0f), curve_exp(-x))); }
XN_CURVE Real curve_silu(Real x) { return XN_DIV(x, XN_ADD(XN_SET(1.0f), curve_exp(-x))); }

XN_CURVE Real curve_tanh(Real x) {
    const Real size = magnitude_of(x), s = XN_MUL(x, x);
    Real p = XN_SET(-0.005717045161873102f);
    p = XN_FMA(p, s, XN_SET(0.02065058797597885f));
    p = XN_FMA(p, s, XN_SET(-0.05374349653720856f));
    p = XN_FMA(p, s, XN_SET(0.13331490755081177f));
    p = XN_FMA(p, s, XN_SET(-0.3333328366279602f));
    const Real inner = XN_FMA(XN_MUL(x, s), p, x);
    const Real outer = XN_SUB(XN_SET(1.0f), XN_DIV(XN_SET(2.0f), XN_ADD(curve_exp(XN_ADD(size, size)), XN_SET(1.0f))));
    return XN_PICK(size < XN_SET(0.625f), inner, with_sign_of(outer, x));
}

XN_CURVE Real curve_erf(Real x) {
    const Real size = magnitude_of(x), s = XN_MUL(x, x), t = XN_AT_MOST(size, XN_SET(4.0f));
    Real p = XN_SET(-0.0005976896500214934f);
    p = XN_FMA(p, s, XN_SET(0.004990980960428715f));
    p = XN_FMA(p, s, XN_SET(-0.026765568181872368f));
    p = XN_FMA(p, s, XN_SET(0.11281802505254745f));
    p = XN_FMA(p, s, XN_SET(-0.37612494826316833f));
    p = XN_FMA(p, s, XN_SET(0.12837915122509003f));
    const Real inner = XN_FMA(x, p, x);
    Real q = XN_SET(-2.116182258760091e-05f);  // log(1 - erf(t))
    q = XN_FMA(q, t, XN_SET(0.0004352179530542344f));
    q = XN_FMA(q, t, XN_SET(-0.004174638539552689f));
    q = XN_FMA(q, t, XN_SET(0.025128614157438278f));
    q = XN_FMA(q, t, XN_SET(-0.10829392820596695f));
    q = XN_FMA(q, t, XN_SET(-0.6333346366882324f));
    q = XN_FMA(q, t, XN_SET(-1.1295207738876343f));
    q = XN_FMA(q, t, XN_SET(0.0001758733269525692f));
    const Real outer = XN_SUB(XN_SET(1.0f), curve_exp(q));
    return XN_PICK(size < XN_SET(0.925f), inner, with_sign_of(outer, x));
}

XN_CURVE Real curve_gelu(Real x) {
    return XN_MUL(XN_MUL(XN_SET(0.5f), x), XN_ADD(XN_SET(1.0f), curve_erf(XN_MUL(x, XN_SET(0.70710678118654752f)))));
}
XN_CURVE Real curve_gelu_tanh(Real x) {
    const Real inner = XN_FMA(XN_MUL(XN_MUL(x, x), XN_SET(0.044715f)), x, x);
    return XN_MUL(XN_MUL(XN_SET(0.5f), x), XN_ADD(XN_SET(1.0f), curve_tanh(XN_MUL(XN_SET(0.79788456080286536f), inner))));
}

XN_CURVE Real curve_elu(Real x, Real alpha) {
    const Real below = XN_MUL(alpha, curve_expm1(XN_PICK(x < XN_SET(0.0f), x, XN_SET(0.0f))));
    return XN_PICK(x < XN_SET(0.0f), below, x);
}
XN_CURVE Real curve_softplus(Real x) {
    const Real least = XN_PICK(x < XN_SET(0.0f), XN_SET(0.0f), x);
    return XN_ADD(least, log_of_one_more(curve_exp(-magnitude_of(x))));
}
XN_CURVE Real curve_mish(Real x) {
    const Real e = curve_exp(XN_PICK(x > XN_SET(20.0f), XN_SET(20.0f), x)), n = XN_MUL(e, XN_ADD(e, XN_SET(2.0f)));
    const Real y = XN_MUL(x, XN_DIV(n, XN_ADD(n, XN_SET(2.0f))));
    return XN_PICK(x > XN_SET(20.0f), x, y);
}
XN_CURVE Real curve_hardswish(Real x) {
    const Real shifted = XN_ADD(x, XN_SET(3.0f)), low = XN_AT_LEAST(shifted, XN_SET(0.0f));
    return XN_DIV(XN_MUL(x, XN_AT_MOST(low, XN_SET(6.0f))), XN_SET(6.0f));
}
XN_CURVE Real curve_sqrt(Real x) { return XN_SQRT(x); }
XN_CURVE Real curve_reciprocal(Real x) { return XN_DIV(XN_SET(1.0f), x); }

// The curves by number; `alpha` is ELU's.
#define XN_EACH_CURVE(CASE)        \
    CASE(0, curve_sigmoid(x))      \
    CASE(1, curve_silu(x))         \
    CASE(2, curve_tanh(x))         \
    CASE(3, curve_elu(x, alpha))   \
    CASE(4, curve_softplus(x))     \
    CASE(5, curve_mish(x))         \
    CASE(6, curve_gelu(x))         \
    CASE(7, curve_gelu_tanh(x))    \
    CASE(8, curve_hardswish(x))    \
    CASE(9, curve_exp(x))          \
    CASE(10, curve_log(x))         \
    CASE(11, curve_erf(x))         \
    CASE(12, curve_sqrt(x))        \
    CASE(13, curve_reciprocal(x))
