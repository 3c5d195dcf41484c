// Parts of a generated source in fixed-point mode; see shared.c. A number q with the exponent e stands for q / 2^e.
// Right shifts of negative numbers keep the sign, as they do with every compiler for these chips.

//@ narrow
/* Saturates; thresholds of a constant sign lie beyond. */
static int32_t narrow(int64_t v)
{
    return v > 2147483646 ? 2147483646 : v < -2147483646 ? -2147483646 : (int32_t)v;
}

//@ shifted narrow
/* v / 2^shift, rounded to nearest; to the left for a negative shift. */
static int32_t shifted(int64_t v, int32_t shift)
{
    if (shift <= 0)
        return narrow(v * ((int64_t)1 << -shift));
    return narrow((v + ((int64_t)1 << (shift - 1))) >> shift);
}

//@ scaled shifted
/* v * m / 2^shift, rounded to nearest. */
static int32_t scaled(int32_t v, int32_t m, int32_t shift)
{
    return shifted((int64_t)v * m, shift);
}

//@ quotient narrow
/* v * 2^shift / q; the largest number for a division by 0. */
static int32_t quotient(int32_t v, int32_t q, int32_t shift)
{
    const int64_t wide = shift >= 0 ? (int64_t)v * ((int64_t)1 << shift) : (int64_t)v >> -shift;
    if (q == 0)
        return v < 0 ? -2147483646 : 2147483646;
    return narrow(wide / q);
}

//@ curve
/* A function by a table of 512 straight lines, 2^steps apart, around 0; what lies beyond is taken for its end. */
static int32_t on_curve(int32_t v, const int32_t *table, int32_t steps)
{
    const int64_t half = (int64_t)256 << steps, at = v + half < 0 ? 0 : v + half > 2 * half - 1 ? 2 * half - 1 : v + half;
    const int32_t i = (int32_t)(at >> steps);
    const int64_t part = at - ((int64_t)i << steps);
    return (int32_t)(table[i] + (((int64_t)table[i + 1] - table[i]) * part >> steps));
}

//@ number16
/* A stored number has 16 bits, and EXTRA more fractional bits in a register. */
#define EXTRA 14

//@ value16
static int32_t value_of(number q)
{
    return q;
}

//@ number24
/* A stored number has 24 bits in three bytes, and EXTRA more fractional bits in a register. */
#define EXTRA 6

//@ value24
static int32_t value_of(number q)
{
    const int32_t low = q.bytes[0] | (int32_t)q.bytes[1] << 8;
    return low + (q.bytes[2] - (q.bytes[2] >= 128 ? 256 : 0)) * 65536;
}

//@ stored16 shifted
static number stored(int32_t v, int32_t shift)
{
    const int32_t q = shifted(v, shift);
    return (number)(q > 32767 ? 32767 : q < -32767 ? -32767 : q);
}

//@ stored24 shifted
static number stored(int32_t v, int32_t shift)
{
    int32_t q = shifted(v, shift);
    number to;
    q = q > 8388607 ? 8388607 : q < -8388607 ? -8388607 : q;
    to.bytes[0] = (uint8_t)q;
    to.bytes[1] = (uint8_t)(q >> 8);
    to.bytes[2] = (uint8_t)(q >> 16);
    return to;
}

//@ dot_numbers16
static int64_t dot_numbers(const number *a, const int16_t *w, int32_t n)
{
    int64_t sum = 0;
    for (int32_t i = 0; i < n; i++)
        sum += (int32_t)a[i] * w[i];
    return sum;
}

//@ dot_numbers24
static int64_t dot_numbers(const number *a, const int32_t *w, int32_t n)
{
    int64_t sum = 0;
    for (int32_t i = 0; i < n; i++)
        sum += (int64_t)value_of(a[i]) * w[i];
    return sum;
}

//@ dot_signed
/* Numbers times one-bit weights: bit 1 adds, bit 0 subtracts. Each tap's `channels` bits begin at a byte. */
static int64_t dot_signed(const number *a, const uint8_t *w, int32_t taps, int32_t channels)
{
    int64_t sum = 0;
    for (int32_t t = 0; t < taps; t++, w += (channels + 7) / 8)
        for (int32_t c = 0; c < channels; c++, a++)
            sum += w[c / 8] >> (c % 8) & 1 ? value_of(*a) : -value_of(*a);
    return sum;
}

//@ input_bytes
/* One byte of an image as the number it stands for. */
static number from_byte(uint8_t byte, int32_t channel)
{
    return stored(byte * input_mult[channel] + input_add[channel], EXTRA);
}

//@ gather_input_bytes window input_bytes
static const number *gather_input(const struct window *g, const uint8_t *in, int32_t first, int32_t y, int32_t x,
                                  number *to)
{
    number *at = to;
    for (int32_t a = 0; a < g->kh; a++) {
        const int32_t row = y * g->sh - g->ph + a * g->dh;
        for (int32_t b = 0; b < g->kw; b++) {
            const int32_t column = x * g->sw - g->pw + b * g->dw;
            const int inside = row >= 0 && row < g->height && column >= 0 && column < g->width;
            memset(at, 0, (size_t)g->channels * sizeof *at);
            for (int32_t c = 0; inside && c < g->channels; c++)
                at[c] = from_byte(in[(row * g->width + column) * g->stride + first + c], first + c);
            at += g->channels;
        }
    }
    return to;
}

//@ gather_input_planes window
static const number *gather_input(const struct window *g, const int16_t *in, int32_t first, int32_t y, int32_t x,
                                  number *to)
{
    number *at = to;
    for (int32_t a = 0; a < g->kh; a++) {
        const int32_t row = y * g->sh - g->ph + a * g->dh;
        for (int32_t b = 0; b < g->kw; b++) {
            const int32_t column = x * g->sw - g->pw + b * g->dw;
            const int inside = row >= 0 && row < g->height && column >= 0 && column < g->width;
            memset(at, 0, (size_t)g->channels * sizeof *at);
            for (int32_t c = 0; inside && c < g->channels; c++)
                at[c] = stored(in[((first + c) * g->height + row) * g->width + column], INPUT_DROP);
            at += g->channels;
        }
    }
    return to;
}

//@ max_pool pool
static int32_t max_pool(const struct pool *p, const number *in, int32_t y, int32_t x, int32_t c)
{
    const int32_t top = y * p->sh - p->ph, left = x * p->sw - p->pw;
    int32_t a0, a1, b0, b1, most = -8388608;
    clip(top, p->kh, 1, p->height, &a0, &a1);
    clip(left, p->kw, 1, p->width, &b0, &b1);
    for (int32_t a = a0; a < a1; a++)
        for (int32_t b = b0; b < b1; b++) {
            const int32_t v = value_of(in[((top + a) * p->width + left + b) * p->channels + c]);
            if (v > most)
                most = v;
        }
    return most * (1 << EXTRA);
}

//@ mean_of shifted
/* A sum divided by a number of elements, with EXTRA more fractional bits; `part` is 2^30 / number. */
static int32_t mean_of(int64_t sum, int32_t part)
{
    return shifted(sum * part, 30 - EXTRA);
}

//@ avg_pool counted mean_of
static int32_t avg_pool(const struct pool *p, const number *in, int32_t y, int32_t x, int32_t c)
{
    const int32_t top = y * p->sh - p->ph, left = x * p->sw - p->pw;
    int32_t a0, a1, b0, b1, count;
    int64_t sum = 0;
    clip(top, p->kh, 1, p->height, &a0, &a1);
    clip(left, p->kw, 1, p->width, &b0, &b1);
    for (int32_t a = a0; a < a1; a++)
        for (int32_t b = b0; b < b1; b++)
            sum += value_of(in[((top + a) * p->width + left + b) * p->channels + c]);
    count = counted(p->include_pad, a1 - a0, top, p->kh, p->height, p->ph) *
            counted(p->include_pad, b1 - b0, left, p->kw, p->width, p->pw);
    return mean_of(sum, (1 << 30) / count);
}

//@ box_filter pool mean_of
/* The mean over a window with zeros outside. */
static int32_t box_filter(const struct pool *p, const number *in, int32_t y, int32_t x, int32_t c)
{
    const int32_t top = y * p->sh - p->ph, left = x * p->sw - p->pw;
    int32_t a0, a1, b0, b1;
    int64_t sum = 0;
    clip(top, p->kh, p->dh, p->height, &a0, &a1);
    clip(left, p->kw, p->dw, p->width, &b0, &b1);
    for (int32_t a = a0; a < a1; a++)
        for (int32_t b = b0; b < b1; b++)
            sum += value_of(in[((top + a * p->dh) * p->width + left + b * p->dw) * p->channels + c]);
    return mean_of(sum, (1 << 30) / (p->kh * p->kw));
}

//@ bilinear image shifted
/* Between two rows and two columns, whose weights have 30 fractional bits. The last ones are their own neighbours. */
static int32_t bilinear(const struct image *p, const number *in, int32_t row, int32_t y1, int32_t column, int32_t x1,
                        int32_t o)
{
    const number *const above = in + (row * p->width + column) * p->channels + o;
    const number *const under = row + 1 < p->height ? above + p->width * p->channels : above;
    const int32_t right = column + 1 < p->width ? p->channels : 0;
    const int64_t y0 = (1 << 30) - y1, x0 = (1 << 30) - x1;
    const int32_t v = shifted(value_of(above[0]) * x0 + (int64_t)value_of(above[right]) * x1, 30 - EXTRA);
    const int32_t w = shifted(value_of(under[0]) * x0 + (int64_t)value_of(under[right]) * x1, 30 - EXTRA);
    return shifted(v * y0 + (int64_t)w * y1, 30);
}

//@ adaptive_avg_pool image mean_of
/* The mean over the rows and columns from the first of two places to before the second. */
static int32_t adaptive_avg_pool(const struct image *p, const number *in, const int32_t *rows, const int32_t *columns,
                                 int32_t o)
{
    int64_t sum = 0;
    for (int32_t a = rows[0]; a < rows[1]; a++)
        for (int32_t b = columns[0]; b < columns[1]; b++)
            sum += value_of(in[(a * p->width + b) * p->channels + o]);
    return mean_of(sum, (1 << 30) / ((rows[1] - rows[0]) * (columns[1] - columns[0])));
}

//@ adaptive_max_pool image
static int32_t adaptive_max_pool(const struct image *p, const number *in, const int32_t *rows, const int32_t *columns,
                                 int32_t o)
{
    int32_t most = -8388608;
    for (int32_t a = rows[0]; a < rows[1]; a++)
        for (int32_t b = columns[0]; b < columns[1]; b++) {
            const int32_t v = value_of(in[(a * p->width + b) * p->channels + o]);
            if (v > most)
                most = v;
        }
    return most * (1 << EXTRA);
}

//@ global_mean mean_of
static int32_t global_mean(const number *in, int32_t pixels, int32_t channels, int32_t c)
{
    int64_t sum = 0;
    for (int32_t i = 0; i < pixels; i++)
        sum += value_of(in[i * channels + c]);
    return mean_of(sum, (1 << 30) / pixels);
}

//@ abs_mean mean_of
/* The mean magnitude of a pixel's channels. */
static int32_t abs_mean(const number *in, int32_t channels)
{
    int64_t sum = 0;
    for (int32_t i = 0; i < channels; i++)
        sum += value_of(in[i]) < 0 ? -value_of(in[i]) : value_of(in[i]);
    return mean_of(sum, (1 << 30) / channels);
}

//@ softmax shifted
/* 2^-y for y >= 0 with 16 fractional bits; the result has 30. */
static int32_t power_of_two(int32_t y)
{
    static const int32_t series[6] = {165394, -1431680, 10327387, -59597083, 257941248, -744261118};
    const int32_t u = y & 0xffff;
    int32_t sum = 0;
    if (y >> 16 > 30)
        return 0;
    for (int32_t i = 0; i < 6; i++)
        sum = (int32_t)(((int64_t)(sum + series[i]) * u) >> 16);
    return ((1 << 30) + sum) >> (y >> 16);
}

/* Writes the exponentials, with 30 fractional bits, and returns their sum. */
static int64_t exponentials(const number *in, int32_t n, int32_t exponent, int32_t *to)
{
    int32_t most = value_of(in[0]);
    int64_t sum = 0;
    for (int32_t i = 1; i < n; i++)
        if (value_of(in[i]) > most)
            most = value_of(in[i]);
    for (int32_t i = 0; i < n; i++) {
        to[i] = power_of_two(shifted((int64_t)(most - value_of(in[i])) * 1549082005, 14 + exponent)); /* log2(e) * 2^30 */
        sum += to[i];
    }
    return sum;
}
