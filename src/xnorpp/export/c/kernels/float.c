// Parts of a generated source in float mode; see shared.c.

//@ fma
/* a*b + c, rounded once where the chip has the instruction. */
#if defined(__FMA__) || defined(__ARM_FEATURE_FMA) || defined(__FP_FAST_FMAF) || defined(XNORPP_FUSED)
#define FMA(a, b, c) __builtin_fmaf(a, b, c)
#else
#define FMA(a, b, c) ((a) * (b) + (c))
#endif

//@ dot_numbers fma
/* Rows, columns and channels in this order, one sum. */
static float dot_numbers(const float *a, const float *w, int32_t n)
{
    float sum = 0;
    for (int32_t i = 0; i < n; i++)
        sum = FMA(a[i], w[i], sum);
    return sum;
}

//@ dot_vector fma
/* A linear layer: even and odd inputs in two sums, as the library's CPU engine does. */
static float dot_vector(const float *a, const float *w, int32_t n)
{
    float even = 0, odd = 0;
    int32_t i = 0;
    for (; i + 2 <= n; i += 2) {
        even = FMA(a[i], w[i], even);
        odd = FMA(a[i + 1], w[i + 1], odd);
    }
    if (i < n)
        even = FMA(a[i], w[i], even);
    return even + odd;
}

//@ dot_signed
/* Numbers times one-bit weights: bit 1 adds, bit 0 subtracts. Each tap's `channels` bits begin at a byte. */
static float dot_signed(const float *a, const uint8_t *w, int32_t taps, int32_t channels)
{
    float sum = 0;
    for (int32_t t = 0; t < taps; t++, w += (channels + 7) / 8)
        for (int32_t c = 0; c < channels; c++, a++)
            sum = w[c / 8] >> (c % 8) & 1 ? sum + *a : sum - *a;
    return sum;
}

//@ dot_signed_vector
static float dot_signed_vector(const float *a, const uint8_t *w, int32_t n)
{
    float sums[2] = {0, 0};
    for (int32_t i = 0; i < n; i++) {
        float *sum = &sums[i & 1];
        *sum = w[i / 8] >> (i % 8) & 1 ? *sum + a[i] : *sum - a[i];
    }
    return sums[0] + sums[1];
}

//@ input_bytes
/* One byte of an image as the number it stands for. */
static float from_byte(uint8_t byte, int32_t channel)
{
    return ((float)byte / 255.0f - input_mean[channel]) / input_std[channel];
}

//@ gather_input_bytes window input_bytes
static const float *gather_input(const struct window *g, const uint8_t *in, int32_t first, int32_t y, int32_t x, float *to)
{
    float *at = to;
    for (int32_t a = 0; a < g->kh; a++) {
        const int32_t row = y * g->sh - g->ph + a * g->dh;
        for (int32_t b = 0; b < g->kw; b++) {
            const int32_t column = x * g->sw - g->pw + b * g->dw;
            const int inside = row >= 0 && row < g->height && column >= 0 && column < g->width;
            for (int32_t c = first; c < first + g->channels; c++)
                *at++ = inside ? from_byte(in[(row * g->width + column) * g->stride + c], c) : 0.0f;
        }
    }
    return to;
}

//@ max_pool pool
static float max_pool(const struct pool *p, const float *in, int32_t y, int32_t x, int32_t c)
{
    const int32_t top = y * p->sh - p->ph, left = x * p->sw - p->pw;
    int32_t a0, a1, b0, b1;
    float most = -INFINITE;
    clip(top, p->kh, 1, p->height, &a0, &a1);
    clip(left, p->kw, 1, p->width, &b0, &b1);
    for (int32_t a = a0; a < a1; a++)
        for (int32_t b = b0; b < b1; b++) {
            const float v = in[((top + a) * p->width + left + b) * p->channels + c];
            if (v > most || v != v)
                most = v;
        }
    return most;
}

//@ avg_pool counted
static float avg_pool(const struct pool *p, const float *in, int32_t y, int32_t x, int32_t c)
{
    const int32_t top = y * p->sh - p->ph, left = x * p->sw - p->pw;
    int32_t a0, a1, b0, b1;
    float sum = 0;
    clip(top, p->kh, 1, p->height, &a0, &a1);
    clip(left, p->kw, 1, p->width, &b0, &b1);
    for (int32_t a = a0; a < a1; a++)
        for (int32_t b = b0; b < b1; b++)
            sum += in[((top + a) * p->width + left + b) * p->channels + c];
    return sum / (float)(counted(p->include_pad, a1 - a0, top, p->kh, p->height, p->ph) *
                         counted(p->include_pad, b1 - b0, left, p->kw, p->width, p->pw));
}

//@ box_filter pool
/* The mean over a window with zeros outside, summed in double and rounded once. */
static float box_filter(const struct pool *p, const float *in, int32_t y, int32_t x, int32_t c)
{
    const int32_t top = y * p->sh - p->ph, left = x * p->sw - p->pw;
    int32_t a0, a1, b0, b1;
    double sum = 0;
    clip(top, p->kh, p->dh, p->height, &a0, &a1);
    clip(left, p->kw, p->dw, p->width, &b0, &b1);
    for (int32_t a = a0; a < a1; a++)
        for (int32_t b = b0; b < b1; b++)
            sum += (double)in[((top + a * p->dh) * p->width + left + b * p->dw) * p->channels + c];
    return (float)(sum / (double)(p->kh * p->kw));
}

//@ bilinear image
/* Between two rows and two columns: y0*(x0*a + x1*b) + y1*(x0*c + x1*d), each step rounded. The last row and column
   are their own neighbours. */
static float bilinear(const struct image *p, const float *in, int32_t row, float y1, int32_t column, float x1, int32_t o)
{
    const float *const above = in + (row * p->width + column) * p->channels + o;
    const float *const under = row + 1 < p->height ? above + p->width * p->channels : above;
    const int32_t right = column + 1 < p->width ? p->channels : 0;
    const float y0 = 1.0f - y1, x0 = 1.0f - x1;
    return y0 * (x0 * above[0] + x1 * above[right]) + y1 * (x0 * under[0] + x1 * under[right]);
}

//@ adaptive_avg_pool image
/* The mean over the rows and columns from the first of two places to before the second. */
static float adaptive_avg_pool(const struct image *p, const float *in, const int32_t *rows, const int32_t *columns,
                               int32_t o)
{
    float sum = 0;
    for (int32_t a = rows[0]; a < rows[1]; a++)
        for (int32_t b = columns[0]; b < columns[1]; b++)
            sum += in[(a * p->width + b) * p->channels + o];
    return sum / (float)((rows[1] - rows[0]) * (columns[1] - columns[0]));
}

//@ adaptive_max_pool image
static float adaptive_max_pool(const struct image *p, const float *in, const int32_t *rows, const int32_t *columns,
                               int32_t o)
{
    float most = -INFINITE;
    for (int32_t a = rows[0]; a < rows[1]; a++)
        for (int32_t b = columns[0]; b < columns[1]; b++) {
            const float v = in[(a * p->width + b) * p->channels + o];
            if (v > most || v != v)
                most = v;
        }
    return most;
}

//@ global_mean
static float global_mean(const float *in, int32_t pixels, int32_t channels, int32_t c)
{
    float sum = 0;
    for (int32_t i = 0; i < pixels; i++)
        sum += in[i * channels + c];
    return sum / (float)pixels;
}

//@ abs_mean
/* The mean magnitude of a pixel's channels, summed in double and rounded once. */
static float abs_mean(const float *in, int32_t channels)
{
    double sum = 0;
    for (int32_t i = 0; i < channels; i++)
        sum += (double)(in[i] < 0 ? -in[i] : in[i]);
    return (float)(sum / (double)channels);
}

//@ softmax
/* e to the power x for x <= 0, within 2 units in the last place: 2^n by its exponent bits, the rest by a polynomial. */
static float exp_of(float x)
{
    if (!(x > -87.0f))
        return x != x ? x : 0;
    const int32_t n = (int32_t)(x * 1.44269504f - 0.5f);
    const float r = (x - (float)n * 0.693145752f) - (float)n * 1.42860677e-6f;
    const float tail = 1.0f / 6 + r * (1.0f / 24 + r * (1.0f / 120 + r * (1.0f / 720)));
    const float power = 1 + (r + r * r * (0.5f + r * tail));
    const uint32_t bits = (uint32_t)(n + 127) << 23;
    float scale;
    memcpy(&scale, &bits, 4);
    return power * scale;
}

/* Writes the exponentials and returns their sum. */
static float exponentials(const float *in, int32_t n, float *to)
{
    float most = in[0], sum = 0;
    for (int32_t i = 1; i < n; i++)
        if (in[i] > most || in[i] != in[i])
            most = in[i];
    for (int32_t i = 0; i < n; i++)
        sum += to[i] = exp_of(in[i] - most);
    return sum;
}

//@ gather_input_planes window
static const float *gather_input(const struct window *g, const float *in, int32_t first, int32_t y, int32_t x, float *to)
{
    float *at = to;
    for (int32_t a = 0; a < g->kh; a++) {
        const int32_t row = y * g->sh - g->ph + a * g->dh;
        for (int32_t b = 0; b < g->kw; b++) {
            const int32_t column = x * g->sw - g->pw + b * g->dw;
            const int inside = row >= 0 && row < g->height && column >= 0 && column < g->width;
            for (int32_t c = first; c < first + g->channels; c++)
                *at++ = inside ? in[(c * g->height + row) * g->width + column] : 0.0f;
        }
    }
    return to;
}
