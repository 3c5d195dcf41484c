// What follows a dot product, four neighbouring channels of one pixel at a time.
//
// A kernel is compiled for one layer; the chain behind it arrives as a macro, EPILOGUE, made of the steps below in
// program order, e.g. "AFFINE(0,1) PRELU(2) ADD(0) STORE(0) SIGN(0,3)". Numbers name a row of the per-channel table
// (`table(k)`: four values of this lane), a stream buffer or an output. In scope: float y[4], float v of the current
// row's constants, bool live (the pixel exists), long pixel (index of the pixel), int channel (first of the four).
//
// An affine step that multiplies and adds rounds once, as batch norm in PyTorch does; every other product and sum is
// rounded on its own. So it is in the numpy reference, and so signs agree.
#pragma once

#define EACH4(statement)                                   \
    _Pragma("unroll") for (int e = 0; e < 4; ++e) { statement; }

#define SCALE(k) { float m_[4]; table(k, m_); EACH4(y[e] = __fmul_rn(y[e], m_[e])) }
#define SHIFT(k) { float s_[4]; table(k, s_); EACH4(y[e] = __fadd_rn(y[e], s_[e])) }
#define AFFINE(k, l) { float m_[4], s_[4]; table(k, m_); table(l, s_); EACH4(y[e] = __fmaf_rn(y[e], m_[e], s_[e])) }
#define RELU EACH4(y[e] = max_or_nan(y[e], 0.0f))
#define PRELU(k) { float p_[4]; table(k, p_); EACH4(y[e] = y[e] > 0.0f ? y[e] : __fmul_rn(p_[e], y[e])) }
// The bounds are given as the bits of a float.
#define HARDTANH(low, high) EACH4(y[e] = min_or_nan(max_or_nan(y[e], bits_float(low)), bits_float(high)))
// Four values of a stream; a kernel that asked for them early says where it has them.
#define RESIDUAL(k, r) if (live) load4((const STREAM*)args.stream_in[k] + pixel * OC + channel, r);
#define ADD(k)                                                                    \
    {                                                                             \
        float r_[4] = {0.0f, 0.0f, 0.0f, 0.0f};                                   \
        RESIDUAL(k, r_)                                                           \
        EACH4(y[e] = __fadd_rn(y[e], r_[e]))                                      \
    }
#define MUL(k)                                                                    \
    {                                                                             \
        float r_[4] = {0.0f, 0.0f, 0.0f, 0.0f};                                   \
        RESIDUAL(k, r_)                                                           \
        EACH4(y[e] = __fmul_rn(y[e], r_[e]))                                      \
    }
// One factor a pixel, float: XNOR-Net's K.
#define MUL_PIXEL(k)                                                              \
    {                                                                             \
        const float f_ = live ? ((const float*)args.stream_in[k])[pixel] : 0.0f;  \
        EACH4(y[e] = __fmul_rn(y[e], f_))                                         \
    }
#define STORE(k) { if (live) store4((STREAM*)args.stream_out[k] + pixel * OC + channel, y); }
// Float rows of another layout or width never pass here. One bit a channel, pushed from the right, so the caller
// walks channels downwards: bit = y > t, the sign of t - y. SIGN_FLIP has f = -1 where the comparison is turned round
// (y < t): table rows hold f*t and -f, and f*t - f*y is exact in one fma. NaN gives 0 in both.
#define SIGN(n, k)                                                                                              \
    {                                                                                                           \
        float t_[4];                                                                                            \
        table(k, t_);                                                                                           \
        _Pragma("unroll") for (int e = 3; e >= 0; --e)                                                          \
            word##n = __funnelshift_l(float_bits(__fsub_rn(t_[e], y[e])), word##n, 1);                          \
    }
#define SIGN_FLIP(n, k, l)                                                                                      \
    {                                                                                                           \
        float t_[4], f_[4];                                                                                     \
        table(k, t_);                                                                                           \
        table(l, f_);                                                                                           \
        _Pragma("unroll") for (int e = 3; e >= 0; --e)                                                          \
            word##n = __funnelshift_l(float_bits(__fmaf_rn(f_[e], y[e], t_[e])), word##n, 1);                   \
    }
