// Functions of one number in float mode, operation by operation as the library's engines do them; see shared.c.

//@ bits_of
/* The bits of a float as an integer, and back. */
static int32_t bits_of(float x)
{
    int32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static float of_bits(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static float power_of_two(int32_t n)
{
    return of_bits((uint32_t)(n + 127) << 23);
}

//@ exponent fma bits_of
/* x = *whole * ln(2) + the result, which is at most 0.35 in magnitude. */
static float reduced(float x, int32_t *whole)
{
    const float shifted = FMA(x, 1.44269504088896341f, 12582912.0f); /* 1.5 * 2^23: the last bit is worth 1 */
    const float n = shifted - 12582912.0f, r = FMA(n, -0.693359375f, x);
    *whole = (int32_t)((uint32_t)bits_of(shifted) - 0x4b400000u);
    return FMA(n, 2.12194440054690583e-4f, r);
}

/* (exp(r) - 1 - r) / r^2 */
static float exponent_tail(float r)
{
    float q = FMA(0.0013951719738543034f, r, 0.008369598537683487f);
    q = FMA(q, r, 0.0416661873459816f);
    q = FMA(q, r, 0.16666512191295624f);
    return FMA(q, r, 0.5f);
}

//@ curve_exp exponent
static float curve_exp(float x)
{
    int32_t whole, half;
    const float r = reduced(x < -104.0f ? -104.0f : x > 89.0f ? 89.0f : x, &whole);
    const float p = FMA(FMA(exponent_tail(r), r, 1.0f), r, 1.0f);
    if (x != x)
        return x;
    half = whole >= 0 ? whole / 2 : -((1 - whole) / 2); /* in two steps, for 2^128 and what is below 2^-126 */
    return p * power_of_two(half) * power_of_two(whole - half);
}

//@ curve_sigmoid curve_exp
static float curve_sigmoid(float x)
{
    return 1.0f / (1.0f + curve_exp(-x));
}

//@ curve_silu curve_exp
static float curve_silu(float x)
{
    return x / (1.0f + curve_exp(-x));
}

//@ curve_tanh curve_exp
static float curve_tanh(float x)
{
    const float size = x < 0 ? -x : x, s = x * x;
    float p = FMA(-0.005717045161873102f, s, 0.02065058797597885f);
    if (size < 0.625f) {
        p = FMA(p, s, -0.05374349653720856f);
        p = FMA(p, s, 0.13331490755081177f);
        p = FMA(p, s, -0.3333328366279602f);
        return FMA(x * s, p, x);
    }
    p = 1.0f - 2.0f / (curve_exp(size + size) + 1.0f);
    return x < 0 ? -p : p;
}

//@ curve_erf curve_exp
static float curve_erf(float x)
{
    const float size = x < 0 ? -x : x, s = x * x, t = size > 4.0f ? 4.0f : size;
    float p;
    if (size < 0.925f) {
        p = FMA(-0.0005976896500214934f, s, 0.004990980960428715f);
        p = FMA(p, s, -0.026765568181872368f);
        p = FMA(p, s, 0.11281802505254745f);
        p = FMA(p, s, -0.37612494826316833f);
        p = FMA(p, s, 0.12837915122509003f);
        return FMA(x, p, x);
    }
    p = FMA(-2.116182258760091e-05f, t, 0.0004352179530542344f); /* log(1 - erf(t)) */
    p = FMA(p, t, -0.004174638539552689f);
    p = FMA(p, t, 0.025128614157438278f);
    p = FMA(p, t, -0.10829392820596695f);
    p = FMA(p, t, -0.6333346366882324f);
    p = FMA(p, t, -1.1295207738876343f);
    p = FMA(p, t, 0.0001758733269525692f);
    p = 1.0f - curve_exp(p);
    return x < 0 ? -p : p;
}

//@ curve_gelu curve_erf
static float curve_gelu(float x)
{
    return 0.5f * x * (1.0f + curve_erf(x * 0.70710678118654752f));
}

//@ curve_gelu_tanh curve_tanh
static float curve_gelu_tanh(float x)
{
    const float inner = FMA(x * x * 0.044715f, x, x);
    return 0.5f * x * (1.0f + curve_tanh(0.79788456080286536f * inner));
}

//@ curve_elu exponent
static float curve_elu(float x, float alpha)
{
    int32_t whole;
    float r, scale;
    if (!(x < 0))
        return x;
    r = reduced(x < -30.0f ? -30.0f : x, &whole);
    scale = power_of_two(whole);
    return alpha * FMA(scale, FMA(r * r, exponent_tail(r), r), scale - 1.0f);
}

//@ log_of_normal fma bits_of
/* For x > 0 that is no subnormal. */
static float log_of_normal(float x)
{
    const int32_t bits = bits_of(x), above = (int32_t)((uint32_t)bits - 0x3f3504f3u); /* sqrt(1/2) */
    const int32_t n = above >= 0 ? above / 8388608 : -((8388607 - above) / 8388608);
    const float f = of_bits((uint32_t)bits - ((uint32_t)n << 23)) - 1.0f, whole = (float)n, square = f * f;
    float q = FMA(0.06746640801429749f, f, -0.11675652116537094f);
    q = FMA(q, f, 0.11888162046670914f);
    q = FMA(q, f, -0.1240558922290802f);
    q = FMA(q, f, 0.14219552278518677f);
    q = FMA(q, f, -0.1666799634695053f);
    q = FMA(q, f, 0.2000211924314499f);
    q = FMA(q, f, -0.25000008940696716f);
    q = FMA(q, f, 0.3333331346511841f);
    q = FMA(square * f, q, whole * -2.12194440054690583e-4f);
    return FMA(whole, 0.693359375f, FMA(square, -0.5f, q) + f);
}

//@ curve_log log_of_normal
static float curve_log(float x)
{
    if (x > 0 && x < INFINITE)
        return x < 1.17549435e-38f ? log_of_normal(x * 8388608.0f) - 15.9423847f : log_of_normal(x);
    return x == 0 ? -INFINITE : x < 0 ? INFINITE - INFINITE : x;
}

//@ curve_softplus curve_exp log_of_normal
static float curve_softplus(float x)
{
    const float u = curve_exp(x < 0 ? x : -x), y = 1.0f + u, lost = u - (y - 1.0f);
    return (x < 0 ? 0.0f : x) + (log_of_normal(y) + lost / y);
}

//@ curve_mish curve_exp
static float curve_mish(float x)
{
    const float e = curve_exp(x > 20.0f ? 20.0f : x), n = e * (e + 2.0f);
    return x > 20.0f ? x : x * (n / (n + 2.0f));
}

//@ curve_hardswish
static float curve_hardswish(float x)
{
    const float shifted = x + 3.0f;
    return x * (shifted < 0 ? 0.0f : shifted > 6.0f ? 6.0f : shifted) / 6.0f;
}

//@ curve_reciprocal
static float curve_reciprocal(float x)
{
    return 1.0f / x;
}

//@ curve_sqrt bits_of
/* Rounded to nearest, by whole numbers: not every chip has the instruction. */
static float curve_sqrt(float x)
{
    const int small = x < 1.17549435e-38f;
    const int32_t bits = bits_of(small ? x * 16777216.0f : x);
    int32_t power = (bits >> 23) - 127 - 23; /* x is m * 2^power */
    uint64_t n = (uint64_t)((bits & 0x7fffff) | 0x800000), root = 0;
    if (!(x > 0) || x == INFINITE)
        return x < 0 ? INFINITE - INFINITE : x;
    if (!(power & 1)) {
        n <<= 1;
        power--;
    }
    n <<= 23;
    for (uint64_t bit = 1u << 23; bit; bit >>= 1)
        if ((root | bit) * (root | bit) <= n)
            root |= bit;
    if (n - root * root > root)
        root++;
    return (float)root * power_of_two((power - 23) / 2 - (small ? 12 : 0));
}
