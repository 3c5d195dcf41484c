// Every operation of a packed program in plain CUDA: right on any GPU, and the path of what binary_conv.cu and stem.cu
// do not take (grouped and odd convolutions, real layers, pools, XNOR-Net's K, GPUs without one-bit tensor cores).
//
// One thread makes eight channels of one pixel, the eight that share a byte of bits (cuda_layout.py: channel 16p + 4t + e
// of 64 sits at bit 16t + 4p + e), then walks over the epilogue's stages with them. A kernel is compiled once for all
// layers; sizes arrive as arguments. Floats lie as [image][row][pixel][channel], as float or half; the caller's picture is
// read where it lies, through strides, and bytes through a table of what each stands for.
#include "device.cuh"

enum StageKind { MULT, SHIFT, MAP, FULL, RELU, PRELU, HARDTANH, ADD, MUL, MUL_PIXEL, STORE, SIGN };

// The numbers of a picture of bits: bytes a pixel, bytes a row, halo, rows an image, and whether a pixel carries its right
// neighbour.
struct BitsPlace {
    int pitch, row, halo, rows, pair;
};

struct Stage {
    int kind;
    float low, high;
    BitsPlace place;      // SIGN
    int half;             // ADD, MUL, STORE: the stream is half
    const float* a;       // a number a channel, a pixel (MAP), or each (FULL, [pixel][channel]); the operand of ADD, MUL
    const float* flip;    // SIGN: 1 where the comparison is turned round
    const float* map;     // SIGN: a factor a pixel, or
    const float* full;    //       each
    void* out;
};

struct PlainArguments {
    const void* source;
    const float* table;   // bytes: what each stands for, [c][256]; null for floats
    const void* weight;
    const float* bias;
    const int* range;     // bit_conv: first and last word of each group; picture_conv: the rest of each filter's sum
    const float* factor;  // picture_conv: the step of each filter
    long image_step, row_step, pixel_step, channel_step;  // of a float or byte source
    BitsPlace place;                                       // of a bit source
    int images, c, h, w, oc, oh, ow;
    int kh, kw, sy, sx, py, px, dy, dx, groups, pad_value, include;
    float value;
    int half;             // the source is half
    int stages;
    Stage stage[32];
};

constexpr int THREADS = 128;
#define EACH8(...)                                  \
    _Pragma("unroll") for (int i = 0; i < 8; ++i) { __VA_ARGS__; }

struct Place {
    int image, y, x;
    int unit, byte;
};

XN_INLINE int channel_of(const Place& p, int i) {
    return 64 * p.unit + 32 * (p.byte % 2) + 16 * (i / 4) + 4 * (p.byte / 2) + i % 4;
}

// Thread `index` of the whole grid; false past the end or where all eight channels are past the last.
XN_INLINE bool locate(const PlainArguments& a, long index, Place& p) {
    const int bytes = (a.oc + 63) / 64 * 8;
    const long pixel = index / bytes;
    p.unit = (int)(index - pixel * bytes) / 8;
    p.byte = (int)(index - pixel * bytes) % 8;
    p.image = (int)(pixel / (a.oh * a.ow));
    const int rest = (int)(pixel - (long)p.image * (a.oh * a.ow));
    p.y = rest / a.ow;
    p.x = rest - p.y * a.ow;
    return p.image < a.images && channel_of(p, 0) < a.oc;
}

XN_INLINE float fetch(const PlainArguments& a, int image, int y, int x, int c) {
    const long at = image * a.image_step + y * a.row_step + x * a.pixel_step + c * a.channel_step;
    if (a.table) return a.table[c * 256 + ((const u8*)a.source)[at]];
    return a.half ? half_to_float(((const u16*)a.source)[at]) : ((const float*)a.source)[at];
}

// Whether four channels can be fetched at once.
XN_INLINE bool by_fours(const PlainArguments& a) { return !a.table && a.channel_step == 1 && a.c % 4 == 0; }

XN_INLINE void fetch4(const PlainArguments& a, long at, float (&v)[4]) {
    if (a.half) load4((const u16*)a.source + at, v);
    else load4((const float*)a.source + at, v);
}

XN_INLINE float stream_value(const Stage& g, long at) {
    return g.half ? half_to_float(((const u16*)g.a)[at]) : g.a[at];
}

XN_INLINE const u32* bits_of(const PlainArguments& a, int image, int y, int x) {
    return (const u32*)((const u8*)a.source + (long)(image * a.place.rows + y + a.place.halo) * a.place.row +
                        (x + a.place.halo) * a.place.pitch);
}

XN_INLINE void run_stages(const PlainArguments& a, const Place& p, float (&v)[8]) {
    const int inside = p.y * a.ow + p.x;
    const long pixel = (long)p.image * (a.oh * a.ow) + inside;
    for (int s = 0; s < a.stages; ++s) {
        const Stage& g = a.stage[s];
        if (g.kind == STORE && a.oc % 4 == 0 && (u64)g.out % 16 == 0) {  // a caller's memory may begin anywhere
#pragma unroll
            for (int j = 0; j < 2; ++j) {
                const int c = channel_of(p, 4 * j);
                const float four[4] = {v[4 * j], v[4 * j + 1], v[4 * j + 2], v[4 * j + 3]};
                if (c >= a.oc) continue;
                if (g.half) store4((u16*)g.out + pixel * a.oc + c, four);
                else store4((float*)g.out + pixel * a.oc + c, four);
            }
            continue;
        }
        u32 bits = 0;
        EACH8({
            const int c = channel_of(p, i);
            if (c < a.oc) switch (g.kind) {
                case MULT: v[i] = __fmul_rn(v[i], g.a[c]); break;
                case SHIFT: v[i] = __fadd_rn(v[i], g.a[c]); break;
                case MAP: v[i] = __fmul_rn(v[i], g.a[inside]); break;
                case FULL: v[i] = __fmul_rn(v[i], g.a[(long)inside * a.oc + c]); break;
                case RELU: v[i] = v[i] < 0.0f ? 0.0f : v[i]; break;
                case PRELU: v[i] = v[i] > 0.0f ? v[i] : __fmul_rn(v[i], g.a[c]); break;
                case HARDTANH: v[i] = v[i] < g.low ? g.low : v[i] > g.high ? g.high : v[i]; break;
                case ADD: v[i] = __fadd_rn(v[i], stream_value(g, pixel * a.oc + c)); break;
                case MUL: v[i] = __fmul_rn(v[i], stream_value(g, pixel * a.oc + c)); break;
                case MUL_PIXEL: v[i] = __fmul_rn(v[i], g.a[pixel]); break;
                case STORE:
                    if (g.half) ((u16*)g.out)[pixel * a.oc + c] = float_to_half(v[i]);
                    else ((float*)g.out)[pixel * a.oc + c] = v[i];
                    break;
                default: {
                    float u = v[i];
                    if (g.map) u = __fmul_rn(u, g.map[inside]);
                    if (g.full) u = __fmul_rn(u, g.full[(long)inside * a.oc + c]);
                    bits |= (u32)(g.flip && g.flip[c] != 0.0f ? u < g.a[c] : u > g.a[c]) << i;
                }
            }
        })
        if (g.kind == SIGN) {
            u8* to = (u8*)g.out + (long)(p.image * g.place.rows + p.y + g.place.halo) * g.place.row +
                     (p.x + g.place.halo) * g.place.pitch + 8 * p.unit + p.byte;
            *to = (u8)bits;
            if (g.place.pair && (g.place.halo > 0 || p.x > 0)) *(to - g.place.pitch + 8) = (u8)bits;
        }
    }
}

// One kernel a producer: `body` fills v[8] for place p.
#define PLAIN(name, body)                                                                   \
    XN_KERNEL void __launch_bounds__(THREADS) name(const PlainArguments a) {                \
        dependency_wait();                                                                  \
        dependency_release();                                                               \
        Place p;                                                                            \
        if (!locate(a, (long)blockIdx.x * THREADS + threadIdx.x, p)) return;                \
        float v[8] = {0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f};                      \
        body;                                                                               \
        run_stages(a, p, v);                                                                \
    }
// Channels that exist; `c` is this one's number.
#define EACH_CHANNEL(...) EACH8(const int c = channel_of(p, i); if (c < a.oc) { __VA_ARGS__; })

XN_INLINE void copy_values(const PlainArguments& a, const Place& p, float (&v)[8]) {
    EACH_CHANNEL(v[i] = fetch(a, p.image, p.y, p.x, c))
}

XN_INLINE void real_values(const PlainArguments& a, const Place& p, float (&v)[8]) {
    const int wide = (a.oc + 63) / 64 * 64, fan = a.c / a.groups, filters = a.oc / a.groups;
    const float* weight = (const float*)a.weight;
    for (int ky = 0; ky < a.kh; ++ky) {
        const int y = p.y * a.sy - a.py + ky * a.dy;
        if (y < 0 || y >= a.h) continue;
        for (int kx = 0; kx < a.kw; ++kx) {
            const int x = p.x * a.sx - a.px + kx * a.dx;
            if (x < 0 || x >= a.w) continue;
            const float* tap = weight + (long)(ky * a.kw + kx) * fan * wide;  // [tap][channel of the group][filter]
            if (a.groups == 1) {
                const int first = channel_of(p, 0), second = channel_of(p, 4);
                for (int k = 0; k < fan; ++k) {
                    const float u = fetch(a, p.image, y, x, k);
                    float w0[4];
                    float w1[4];
                    load4(tap + (long)k * wide + first, w0);
                    load4(tap + (long)k * wide + second, w1);
                    EACH8(v[i] = __fmaf_rn(u, i < 4 ? w0[i % 4] : w1[i % 4], v[i]))
                }
            } else {
                EACH_CHANNEL(const int from = c / filters * fan; for (int k = 0; k < fan; ++k) v[i] =
                                 __fmaf_rn(fetch(a, p.image, y, x, from + k), tap[(long)k * wide + c], v[i]))
            }
        }
    }
    if (a.bias) { EACH_CHANNEL(v[i] = __fadd_rn(v[i], a.bias[c])) }
}

// The bytes themselves times whole-numbered filters (runtime/picture.py): an exact sum, then rounded as on the CPU.
XN_INLINE void picture_values(const PlainArguments& a, const Place& p, float (&v)[8]) {
    const int wide = (a.oc + 63) / 64 * 64;
    const int* weight = (const int*)a.weight;  // [tap][channel, then the mean][filter]
    int sum[8] = {0, 0, 0, 0, 0, 0, 0, 0};
    for (int ky = 0; ky < a.kh; ++ky) {
        const int y = p.y * a.sy - a.py + ky * a.dy;
        if (y < 0 || y >= a.h) continue;
        for (int kx = 0; kx < a.kw; ++kx) {
            const int x = p.x * a.sx - a.px + kx * a.dx;
            if (x < 0 || x >= a.w) continue;
            const u8* from = (const u8*)a.source + p.image * a.image_step + y * a.row_step + x * a.pixel_step;
            const int* tap = weight + (long)(ky * a.kw + kx) * (a.c + 1) * wide;
            for (int k = 0; k <= a.c; ++k) {
                const int u = k < a.c ? from[k] : 255;
                EACH8(sum[i] += u * tap[(long)k * wide + channel_of(p, i)])
            }
        }
    }
    EACH_CHANNEL(v[i] = __fmul_rn(__int2float_rn(sum[i] + a.range[c]), a.factor[c]))
    if (a.bias) { EACH_CHANNEL(v[i] = __fadd_rn(v[i], a.bias[c])) }
}

// dot = n - 2*popcount(a ^ w) over the taps inside; a tap outside adds pad_value times the filter's sum.
XN_INLINE void bit_values(const PlainArguments& a, const Place& p, float (&v)[8]) {
    const int wide = (a.oc + 63) / 64 * 64, fan = a.c / a.groups, filters = a.oc / a.groups, words = (a.c + 63) / 64 * 2;
    const u32* weight = (const u32*)a.weight;     // [tap][word][filter]
    const u32* mask = weight + (long)a.kh * a.kw * words * wide;  // [word][group]
    EACH_CHANNEL({
        const int group = c / filters;
        int dot = 0;
        for (int tap = 0; tap < a.kh * a.kw; ++tap) {
            const int y = p.y * a.sy - a.py + tap / a.kw * a.dy, x = p.x * a.sx - a.px + tap % a.kw * a.dx;
            const bool in = y >= 0 && y < a.h && x >= 0 && x < a.w;
            if (!in && a.pad_value == 0) continue;
            const u32* from = in ? bits_of(a, p.image, y, x) : 0;
            int differ = 0;
            for (int k = a.range[2 * group]; k <= a.range[2 * group + 1]; ++k) {
                const u32 bits = in ? from[k] : a.pad_value > 0 ? ~0u : 0u;
                differ += __popc((bits ^ weight[((long)tap * words + k) * wide + c]) & mask[k * a.groups + group]);
            }
            dot += fan - 2 * differ;
        }
        v[i] = __int2float_rn(dot);
    })
}

XN_INLINE void max_values(const PlainArguments& a, const Place& p, float (&v)[8]) {
    EACH_CHANNEL({
        float best = -__uint_as_float(0x7f800000u);
        for (int ky = 0; ky < a.kh; ++ky)
            for (int kx = 0; kx < a.kw; ++kx) {
                const int y = p.y * a.sy - a.py + ky, x = p.x * a.sx - a.px + kx;
                if (y < 0 || y >= a.h || x < 0 || x >= a.w) continue;
                const float u = fetch(a, p.image, y, x, c);
                if (!(u <= best)) best = best != best ? best : u;  // a NaN wins and stays
            }
        v[i] = best;
    })
}

// Sum over the window; its size counts the padding where `include` says so (1), or is kh*kw everywhere (2: box filter).
XN_INLINE void mean_values(const PlainArguments& a, const Place& p, float (&v)[8]) {
    int count = 0;
    for (int ky = 0; ky < a.kh; ++ky)
        for (int kx = 0; kx < a.kw; ++kx) {
            const int y = p.y * a.sy - a.py + ky * a.dy, x = p.x * a.sx - a.px + kx * a.dx;
            const bool in = y >= 0 && y < a.h && x >= 0 && x < a.w;
            count += a.include == 2 || in || (a.include == 1 && y < a.h + a.py && x < a.w + a.px);
            if (in) { EACH_CHANNEL(v[i] = __fadd_rn(v[i], fetch(a, p.image, y, x, c))) }
        }
    EACH8(v[i] = __fdiv_rn(v[i], __int2float_rn(count)))
}

XN_INLINE void channel_mean(const PlainArguments& a, const Place& p, float (&v)[8]) {
    for (int k = 0; k < a.c; ++k) v[0] = __fadd_rn(v[0], fabsf(fetch(a, p.image, p.y, p.x, k)));
    v[0] = __fdiv_rn(v[0], __int2float_rn(a.c));
}

XN_INLINE void soft_values(const PlainArguments& a, const Place& p, float (&v)[8]) {
    float top = fetch(a, p.image, 0, 0, 0);
    for (int k = 1; k < a.c; ++k) {
        const float u = fetch(a, p.image, 0, 0, k);
        if (!(u <= top)) top = top != top ? top : u;
    }
    float sum = 0.0f;
    for (int k = 0; k < a.c; ++k) sum = __fadd_rn(sum, expf(__fsub_rn(fetch(a, p.image, 0, 0, k), top)));
    EACH_CHANNEL(v[i] = __fdiv_rn(expf(__fsub_rn(fetch(a, p.image, 0, 0, c), top)), sum))
}

XN_INLINE void flat_values(const PlainArguments& a, const Place& p, float (&v)[8]) {
    EACH_CHANNEL(v[i] = fetch(a, p.image, c / a.w % a.h, c % a.w, c / (a.h * a.w)))
}

// py, px: rows and pixels put before; dy: channels put before.
XN_INLINE void padded_values(const PlainArguments& a, const Place& p, float (&v)[8]) {
    const int y = p.y - a.py, x = p.x - a.px;
    const bool in = y >= 0 && y < a.h && x >= 0 && x < a.w;
    EACH_CHANNEL(const int k = c - a.dy; v[i] = in && k >= 0 && k < a.c ? fetch(a, p.image, y, x, k) : a.value)
}

XN_INLINE void sign_values(const PlainArguments& a, const Place& p, float (&v)[8]) {
    const u8* from = (const u8*)bits_of(a, p.image, p.y, p.x);
    EACH8(v[i] = from[8 * p.unit + p.byte] >> i & 1 ? 1.0f : -1.0f)
}

PLAIN(pointwise, copy_values(a, p, v))
PLAIN(real_conv, real_values(a, p, v))
PLAIN(picture_conv, picture_values(a, p, v))
PLAIN(bit_conv, bit_values(a, p, v))
PLAIN(max_pool, max_values(a, p, v))
PLAIN(mean_pool, mean_values(a, p, v))
PLAIN(abs_mean, channel_mean(a, p, v))
PLAIN(softmax, soft_values(a, p, v))
PLAIN(flatten, flat_values(a, p, v))
PLAIN(pad, padded_values(a, p, v))
PLAIN(signs, sign_values(a, p, v))

// Adds the pixels of four channels in order, as every engine does; 25 are on their way at once (49: two rounds). Zeros
// behind the last change nothing: a sum that began with +0 is never -0.
template <class T>
XN_INLINE void add_pixels(const T* from, long step, int area, float (&sum)[4]) {
    constexpr int AHEAD = 25;
    typedef typename Four<T>::type Some;
    for (int left = area; left > 0; left -= AHEAD) {
        Some some[AHEAD];
#pragma unroll
        for (int k = 0; k < AHEAD; ++k, from += step) {
            some[k] = Some();
            if (k < left) some[k] = *(const Some*)from;
        }
#pragma unroll
        for (int k = 0; k < AHEAD; ++k) {
            float u[4];
            unpack4(some[k], u);
#pragma unroll
            for (int i = 0; i < 4; ++i) sum[i] = __fadd_rn(sum[i], u[i]);
        }
    }
}

// The mean of a picture: a thread makes four neighbouring channels of an image, sixteen lanes 64, straight from memory.
// Then lane g takes over what lane g + 4 has, which makes the eight channels of a byte. One warp a block: small batches
// spread over the GPU, and nobody waits for anybody.
constexpr int MEAN_THREADS = 32;
XN_KERNEL void __launch_bounds__(MEAN_THREADS, 1) global_mean(const PlainArguments a) {
    const int units = (a.oc + 63) / 64, index = blockIdx.x * (MEAN_THREADS / 16) + threadIdx.x / 16;
    const int group = threadIdx.x % 16, area = a.h * a.w;
    Place p;
    p.image = index / units;
    p.unit = index % units;
    p.byte = group % 4 * 2 + group / 8;
    p.y = p.x = 0;
    const int channel = 64 * p.unit + 4 * group;
    float sum[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    dependency_wait();
    dependency_release();
    if (p.image < a.images && channel < a.c) {
        if (by_fours(a) && a.row_step == a.w * a.pixel_step) {
            const long at = p.image * a.image_step + channel;
            if (a.half) add_pixels((const u16*)a.source + at, a.pixel_step, area, sum);
            else add_pixels((const float*)a.source + at, a.pixel_step, area, sum);
        } else {
#pragma unroll 1
            for (int k = 0; k < area; ++k) {
#pragma unroll
                for (int i = 0; i < 4; ++i)
                    if (channel + i < a.c) sum[i] = __fadd_rn(sum[i], fetch(a, p.image, k / a.w, k % a.w, channel + i));
            }
        }
    }
    float v[8];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        v[i] = __fdiv_rn(sum[i], __int2float_rn(area));
        v[4 + i] = __uint_as_float((u32)__shfl_xor_sync(~0u, (int)__float_as_uint(v[i]), 4));
    }
    if (group & 4 || p.image >= a.images || channel >= a.oc) return;
    run_stages(a, p, v);
}

#include "linear.cuh"
