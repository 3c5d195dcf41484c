// Every operation of a packed program in plain CUDA: right on any GPU, and the path of what binary_conv.cu, stem.cu and
// real_conv.cu do not take (grouped and odd convolutions, few real outputs, pools, XNOR-Net's K, GPUs without one-bit
// tensor cores).
//
// One thread makes eight channels of one pixel, the eight that share a byte of bits (cuda_layout.py: channel 16p + 4t + e
// of 64 sits at bit 16t + 4p + e), then walks over the epilogue's stages with them. A kernel is compiled once for all
// layers; sizes arrive as arguments. Floats lie as [image][row][pixel][channel], as float or half; the caller's image is
// read where it lies, through strides, and bytes through a table of what each stands for.
#include "producer.cuh"

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

// The bytes themselves times whole-numbered filters (runtime/stem.py): an exact sum, then rounded as on the CPU.
XN_INLINE void image_values(const PlainArguments& a, const Place& p, float (&v)[8]) {
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

XN_INLINE float larger(float best, float u) { return u <= best ? best : best != best ? best : u; }  // a NaN wins and stays

XN_INLINE void max_values(const PlainArguments& a, const Place& p, float (&v)[8]) {
    const bool fours = by_fours(a) && (u64)a.source % 16 == 0;
    const int first = channel_of(p, 0), second = channel_of(p, 4);
    EACH8(v[i] = -__uint_as_float(0x7f800000u))
    for (int ky = 0; ky < a.kh; ++ky)
        for (int kx = 0; kx < a.kw; ++kx) {
            const int y = p.y * a.sy - a.py + ky, x = p.x * a.sx - a.px + kx;
            if (y < 0 || y >= a.h || x < 0 || x >= a.w) continue;
            if (fours) {
                const long at = p.image * a.image_step + y * a.row_step + x * a.pixel_step;
                float u0[4];
                float u1[4];
                fetch4(a, at + first, u0);
                fetch4(a, at + (second < a.c ? second : first), u1);
                EACH8(v[i] = larger(v[i], i < 4 ? u0[i % 4] : u1[i % 4]))
            } else {
                EACH_CHANNEL(v[i] = larger(v[i], fetch(a, p.image, y, x, c)))
            }
        }
}

// Sum over the window; its size counts the padding where `include` says so.
XN_INLINE void mean_values(const PlainArguments& a, const Place& p, float (&v)[8]) {
    int count = 0;
    for (int ky = 0; ky < a.kh; ++ky)
        for (int kx = 0; kx < a.kw; ++kx) {
            const int y = p.y * a.sy - a.py + ky * a.dy, x = p.x * a.sx - a.px + kx * a.dx;
            const bool in = y >= 0 && y < a.h && x >= 0 && x < a.w;
            count += in || (a.include && y < a.h + a.py && x < a.w + a.px);
            if (in) { EACH_CHANNEL(v[i] = __fadd_rn(v[i], fetch(a, p.image, y, x, c))) }
        }
    EACH8(v[i] = __fdiv_rn(v[i], __int2float_rn(count)))
}

// XNOR-Net's K, the mean of |x| over the channels and then over a window, is summed in double and rounded once at each of
// the two: whatever the order, the same number as on the CPU.
XN_INLINE void channel_mean(const PlainArguments& a, const Place& p, float (&v)[8]) {
    double sum = 0.0;
    for (int k = 0; k < a.c; ++k) sum += fabsf(fetch(a, p.image, p.y, p.x, k));
    v[0] = (float)(sum / a.c);
}

XN_INLINE void box_values(const PlainArguments& a, const Place& p, float (&v)[8]) {
    EACH_CHANNEL(double sum = 0.0; for (int tap = 0; tap < a.kh * a.kw; ++tap) {
        const int y = p.y * a.sy - a.py + tap / a.kw * a.dy, x = p.x * a.sx - a.px + tap % a.kw * a.dx;
        if (y >= 0 && y < a.h && x >= 0 && x < a.w) sum += fetch(a, p.image, y, x, c);
    } v[i] = (float)(sum / (a.kh * a.kw)))
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
PLAIN(image_conv, image_values(a, p, v))
PLAIN(bit_conv, bit_values(a, p, v))
PLAIN(max_pool, max_values(a, p, v))
PLAIN(mean_pool, mean_values(a, p, v))
PLAIN(box_filter, box_values(a, p, v))
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

// The mean of an image: a thread makes four neighbouring channels of an image, sixteen lanes 64, straight from memory.
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
