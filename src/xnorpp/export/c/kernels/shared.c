// Parts of a generated source that the float and the fixed-point mode share. A line `//@ NAME NEEDS...` begins a part;
// a source gets the parts that its layers need, in the order of the files. `number` is float or int16_t.

//@ window
/* What a convolution reads for one output pixel: kh x kw taps of `channels` channels (of one group) of an image. */
struct window {
    int32_t height, width, stride;             /* of the input; numbers (or bytes of bits) of one pixel */
    int32_t channels, kh, kw;                  /* of the window */
    int32_t sh, sw, ph, pw, dh, dw;            /* strides, padding, dilation */
    int32_t size;                              /* numbers (or 32-bit words) of the whole window */
};

//@ numbers window
/* Collects the numbers under the window of the output pixel (y, x), from channel `first` on; zeros outside the image. */
static const number *gather(const struct window *g, const number *in, int32_t first, int32_t y, int32_t x, number *to)
{
    number *at = to;
    for (int32_t a = 0; a < g->kh; a++) {
        const int32_t row = y * g->sh - g->ph + a * g->dh;
        for (int32_t b = 0; b < g->kw; b++, at += g->channels) {
            const int32_t column = x * g->sw - g->pw + b * g->dw;
            if (row < 0 || row >= g->height || column < 0 || column >= g->width)
                memset(at, 0, (size_t)g->channels * sizeof *at);
            else
                memcpy(at, in + (row * g->width + column) * g->stride + first, (size_t)g->channels * sizeof *at);
        }
    }
    return to;
}

//@ popcount
/* The number of differing bits. These chips have no instruction that counts bits: three words at a time are added
   column by column into sums and carries, which are then counted in parallel. */
static int32_t differing(const uint32_t *a, const uint32_t *w, int32_t n)
{
#if defined(__POPCNT__) || defined(__riscv_zbb)
    int32_t total = 0;
    for (int32_t i = 0; i < n; i++)
        total += __builtin_popcount(a[i] ^ w[i]);
    return total;
#else
    uint32_t total = 0;
    while (n > 0) {
        uint32_t counts = 0;                   /* one in each byte, at most 10 * 24 */
        for (int32_t k = 0; k < 10 && n > 0; k++, n -= 3) {
            const uint32_t p = *a++ ^ *w++;
            const uint32_t q = n > 1 ? *a++ ^ *w++ : 0;
            const uint32_t r = n > 2 ? *a++ ^ *w++ : 0;
            uint32_t one = p ^ q ^ r, two = (p & q) | (r & (p ^ q));
            one -= (one >> 1) & 0x55555555u;
            two -= (two >> 1) & 0x55555555u;
            one = (one & 0x33333333u) + ((one >> 2) & 0x33333333u);
            two = (two & 0x33333333u) + ((two >> 2) & 0x33333333u);
            one += 2 * two;
            counts += (one & 0x0f0f0f0fu) + ((one >> 4) & 0x0f0f0f0fu);
        }
        counts = (counts & 0x00ff00ffu) + ((counts >> 8) & 0x00ff00ffu);
        total += (counts + (counts >> 16)) & 0xffffu;
    }
    return (int32_t)total;
#endif
}

//@ dot_bits popcount
/* The dot product of `products` signs. Tail bits are 0 on both sides; a mask leaves out the zeros of the padding. */
static int32_t dot_bits(const uint32_t *a, const uint32_t *w, const uint32_t *mask, int32_t words, int32_t products)
{
    int32_t count = 0;
    if (!mask)
        return products - 2 * differing(a, w, words);
    for (int32_t i = 0; i < words; i++) {
        const uint32_t here = w[i] & mask[i];
        count += differing(a + i, &here, 1);
    }
    return products - 2 * count;
}

//@ gather_bits window
/* Collects the bits under a window, and a mask of those inside the image; returns how many are inside. Outside, the
   bits are those of `pad`: -1, +1, or 0 and then masked. */
static int32_t gather_bits(const struct window *g, const uint8_t *in, int32_t pad, int32_t y, int32_t x, uint32_t *bits,
                           uint32_t *mask)
{
    const int32_t bytes = (g->channels + 7) / 8;
    const uint8_t last = (uint8_t)(0xff >> (bytes * 8 - g->channels));
    const int32_t top = y * g->sh - g->ph, left = x * g->sw - g->pw;
    uint8_t *to = (uint8_t *)bits, *inside = (uint8_t *)mask;
    int32_t taps = 0;
    bits[g->size - 1] = 0;
    if (g->dw == 1 && g->stride == bytes && top >= 0 && left >= 0 && top + (g->kh - 1) * g->dh < g->height &&
        left + g->kw <= g->width) {
        for (int32_t a = 0; a < g->kh; a++, to += g->kw * bytes)
            memcpy(to, in + ((top + a * g->dh) * g->width + left) * bytes, (size_t)(g->kw * bytes));
        return g->kh * g->kw * g->channels;
    }
    mask[g->size - 1] = 0;
    for (int32_t a = 0; a < g->kh; a++) {
        const int32_t row = top + a * g->dh;
        for (int32_t b = 0; b < g->kw; b++, to += bytes, inside += bytes) {
            const int32_t column = left + b * g->dw;
            const int in_image = row >= 0 && row < g->height && column >= 0 && column < g->width;
            if (in_image) {
                memcpy(to, in + (row * g->width + column) * g->stride, (size_t)bytes);
            } else {
                memset(to, pad > 0 ? 0xff : 0, (size_t)bytes);
                to[bytes - 1] &= last;
            }
            memset(inside, in_image ? 0xff : 0, (size_t)bytes);
            taps += in_image || pad != 0;
        }
    }
    return taps * g->channels;
}

//@ gather_group window
/* `gather_bits` for one group of channels, which need not begin at a byte: bit by bit. */
static int32_t gather_group(const struct window *g, const uint8_t *in, int32_t pad, int32_t first, int32_t y, int32_t x,
                            uint32_t *bits, uint32_t *mask)
{
    const int32_t bytes = (g->channels + 7) / 8;
    uint8_t *to = (uint8_t *)bits, *inside = (uint8_t *)mask;
    int32_t taps = 0;
    memset(bits, 0, (size_t)g->size * 4);
    memset(mask, 0, (size_t)g->size * 4);
    for (int32_t a = 0; a < g->kh; a++) {
        const int32_t row = y * g->sh - g->ph + a * g->dh;
        for (int32_t b = 0; b < g->kw; b++, to += bytes, inside += bytes) {
            const int32_t column = x * g->sw - g->pw + b * g->dw;
            const int in_image = row >= 0 && row < g->height && column >= 0 && column < g->width;
            const uint8_t *from = in + (row * g->width + column) * g->stride;
            for (int32_t c = 0; c < g->channels; c++) {
                const int on = in_image ? from[(first + c) / 8] >> ((first + c) % 8) & 1 : pad > 0;
                to[c / 8] = (uint8_t)(to[c / 8] | on << (c % 8));
            }
            memset(inside, in_image ? 0xff : 0, (size_t)bytes);
            taps += in_image || pad != 0;
        }
    }
    return taps * g->channels;
}

//@ byte_sums window
/* Collects the bytes of an image under a window, each tap with one more channel: 255 inside the image, 0 outside. */
static const uint8_t *gather_bytes(const struct window *g, const uint8_t *in, int32_t y, int32_t x, uint8_t *to)
{
    uint8_t *at = to;
    for (int32_t a = 0; a < g->kh; a++) {
        const int32_t row = y * g->sh - g->ph + a * g->dh;
        for (int32_t b = 0; b < g->kw; b++, at += g->channels + 1) {
            const int32_t column = x * g->sw - g->pw + b * g->dw;
            const int inside = row >= 0 && row < g->height && column >= 0 && column < g->width;
            memset(at, 0, (size_t)(g->channels + 1));
            if (inside) {
                memcpy(at, in + (row * g->width + column) * g->channels, (size_t)g->channels);
                at[g->channels] = 255;
            }
        }
    }
    return to;
}

/* An exact sum of whole-numbered filters over bytes. */
static int32_t sum_bytes(const uint8_t *a, const int16_t *w, int32_t n, int32_t sum)
{
    for (int32_t i = 0; i < n; i++)
        sum += a[i] * w[i];
    return sum;
}

//@ pool
struct pool {
    int32_t height, width, channels;           /* of the input */
    int32_t kh, kw, sh, sw, ph, pw, dh, dw;
    int32_t include_pad;
};

/* The taps of a window that lie inside: begin to end. */
static void clip(int32_t first, int32_t kernel, int32_t dilation, int32_t size, int32_t *begin, int32_t *end)
{
    *begin = 0;
    *end = kernel;
    while (*begin < kernel && first + *begin * dilation < 0)
        ++*begin;
    while (*end > *begin && first + (*end - 1) * dilation >= size)
        --*end;
}

//@ image
struct image {
    int32_t height, width, channels;           /* of the input */
};

//@ counted pool
/* How many rows or columns a mean divides by: those inside, or with the padding, but never beyond it. */
static int32_t counted(int32_t include_pad, int32_t inside, int32_t first, int32_t kernel, int32_t size, int32_t padding)
{
    const int32_t end = size + padding - first;
    return !include_pad ? inside : end < kernel ? end : kernel;
}
