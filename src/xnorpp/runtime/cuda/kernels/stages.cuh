// The arguments of the plain kernels, how they read their source, and the stages of an epilogue, eight channels of a pixel at
// a time: a part of plain.cu and real_conv.cu.
#pragma once
#include "device.cuh"

#define XN_CURVE XN_INLINE
#define XN_ADD(a, b) __fadd_rn(a, b)
#define XN_SUB(a, b) __fsub_rn(a, b)
#define XN_MUL(a, b) __fmul_rn(a, b)
#define XN_DIV(a, b) __fdiv_rn(a, b)
#define XN_FMA(a, b, c) __fmaf_rn(a, b, c)
#define XN_SQRT(a) __fsqrt_rn(a)
#define XN_SET(a) (a)
#define XN_PICK(choice, yes, no) ((choice) ? (yes) : (no))
#define XN_AT_LEAST(x, least) XN_PICK((x) < (least), least, x)
#define XN_AT_MOST(x, most) XN_PICK((x) > (most), most, x)
#define XN_INT(a) ((int)__float_as_uint(a))
#define XN_FLOAT(a) __uint_as_float((u32)(a))
#define XN_NUMBER(a) __int2float_rn(a)
#define XN_MINUS(a, b) ((int)((u32)(a) - (u32)(b)))
#define XN_SHIFT(a, n) ((int)((u32)(a) << (n)))
#define XN_INFINITY __uint_as_float(0x7f800000u)
#define XN_SIGN_BIT ((int)0x80000000u)
typedef float Real;
typedef int Whole;
typedef bool Choice;
#include "curves.cuh"

enum StageKind { MULT, SHIFT, AFFINE, MAP, FULL, RELU, PRELU, HARDTANH, ADD, MUL, MUL_PIXEL, STORE, SIGN, CURVE, OFFSET, COMBINE };

// The numbers of an image of bits: bytes a pixel, bytes a row, halo, rows an image, and whether a pixel carries its right
// neighbour.
struct BitsPlace {
    int pitch, row, halo, rows, pair;
};

struct Stage {
    int kind;
    float low, high;
    BitsPlace place;      // SIGN
    int half;             // ADD, MUL, STORE, COMBINE: the stream is half
    int which;            // CURVE: its number in curves.cuh, `low` its parameter; COMBINE: 4*spread + add, sub, mul or div
    const float* a;       // a number a channel, a pixel (MAP), or each (FULL, [pixel][channel]); the operand of ADD, MUL
    const float* flip;    // SIGN: 1 where the comparison is turned round; AFFINE: the summand a channel
    const float* map;     // SIGN: a factor a pixel, or
    const float* full;    //       each
    void* out;
};

// A further input of a producer: [image][pixel][channel].
struct Operand {
    const void* data;
    int c, pixels, half;
};

struct PlainArguments {
    const void* source;
    const float* table;   // bytes: what each stands for, [c][256]; null for floats
    const void* weight;
    const float* bias;
    const int* range;     // bit_conv: first and last word of each group; image_conv: the rest of each filter's sum
    const float* factor;  // image_conv: the step of each filter
    long image_step, row_step, pixel_step, channel_step;  // of a float or byte source
    BitsPlace place;                                       // of a bit source
    int images, c, h, w, oc, oh, ow;
    int kh, kw, sy, sx, py, px, dy, dx, groups, pad_value, include;
    float value;
    int half;             // the source is half
    // Of the operations in plain/: further inputs, constants, and numbers whose meaning is each one's own.
    Operand operand[3];
    const float* constant[2];
    int number[32];
    float real[4];
    int stages;
    Stage stage[32];
};

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

// The numbers a channel of a stage, read where they are needed; or held for several pixels (`HeldNumbers`).
struct StageNumbers {
    const Stage& g;
};
struct HeldNumbers {
    float a[8];
    float flip[8];
};
XN_INLINE float number_of(const StageNumbers& n, int, int c) { return n.g.a[c]; }
XN_INLINE float number_of(const HeldNumbers& n, int i, int) { return n.a[i]; }
XN_INLINE float second_of(const StageNumbers& n, int, int c) { return n.g.flip[c]; }
XN_INLINE float second_of(const HeldNumbers& n, int i, int) { return n.flip[i]; }
XN_INLINE bool flipped(const StageNumbers& n, int, int c) { return n.g.flip && n.g.flip[c] != 0.0f; }
XN_INLINE bool flipped(const HeldNumbers& n, int i, int) { return n.flip[i] != 0.0f; }

// A number for each of the eight channels; nothing where there is none.
XN_INLINE void hold(const float* from, const Place& p, int oc, float (&numbers)[8]) {
    EACH8(const int c = channel_of(p, i); numbers[i] = from && c < oc ? from[c] : 0.0f)
}

XN_INLINE float run_curve(int which, float alpha, float x) {
#define XN_CASE(number, body) if (which == number) return body;
    XN_EACH_CURVE(XN_CASE)
#undef XN_CASE
    return x;
}

// A value that lies on the result in one of four ways: each, pixel, channel, one.
XN_INLINE float combined(const Stage& g, const Place& p, int oc, long pixel, int c, float v) {
    const int spread = g.which / 4, function = g.which % 4;
    const long at = spread == 0 ? pixel * oc + c : spread == 1 ? pixel : spread == 2 ? (long)p.image * oc + c : p.image;
    const float u = stream_value(g, at);
    return function == 0 ? __fadd_rn(v, u) : function == 1 ? __fsub_rn(v, u) : function == 2 ? __fmul_rn(v, u) : __fdiv_rn(v, u);
}

// One stage on eight channels of a pixel: number `pixel` of all, `inside` of its image.
template <class Numbers>
XN_INLINE void run_stage(const Stage& g, int kind, const Place& p, int oc, int inside, long pixel, const Numbers& numbers,
                         float (&v)[8]) {
    if (kind == STORE && oc % 4 == 0 && (u64)g.out % 16 == 0) {  // a caller's memory may begin anywhere
#pragma unroll
        for (int j = 0; j < 2; ++j) {
            const int c = channel_of(p, 4 * j);
            const float four[4] = {v[4 * j], v[4 * j + 1], v[4 * j + 2], v[4 * j + 3]};
            if (c >= oc) continue;
            if (g.half) store4((u16*)g.out + pixel * oc + c, four);
            else store4((float*)g.out + pixel * oc + c, four);
        }
        return;
    }
    u32 bits = 0;
    EACH8({
        const int c = channel_of(p, i);
        if (c < oc) switch (kind) {
            case MULT: v[i] = __fmul_rn(v[i], number_of(numbers, i, c)); break;
            case SHIFT: v[i] = __fadd_rn(v[i], number_of(numbers, i, c)); break;
            case AFFINE: v[i] = __fmaf_rn(v[i], number_of(numbers, i, c), second_of(numbers, i, c)); break;
            case MAP: v[i] = __fmul_rn(v[i], g.a[inside]); break;
            case FULL: v[i] = __fmul_rn(v[i], g.a[(long)inside * oc + c]); break;
            case RELU: v[i] = v[i] < 0.0f ? 0.0f : v[i]; break;
            case PRELU: v[i] = v[i] > 0.0f ? v[i] : __fmul_rn(v[i], number_of(numbers, i, c)); break;
            case HARDTANH: v[i] = v[i] < g.low ? g.low : v[i] > g.high ? g.high : v[i]; break;
            case ADD: v[i] = __fadd_rn(v[i], stream_value(g, pixel * oc + c)); break;
            case MUL: v[i] = __fmul_rn(v[i], stream_value(g, pixel * oc + c)); break;
            case MUL_PIXEL: v[i] = __fmul_rn(v[i], g.a[pixel]); break;
            case CURVE: v[i] = run_curve(g.which, g.low, v[i]); break;
            case OFFSET: v[i] = __fadd_rn(v[i], g.a[(long)inside * oc + c]); break;
            case COMBINE: v[i] = combined(g, p, oc, pixel, c, v[i]); break;
            case STORE:
                if (g.half) ((u16*)g.out)[pixel * oc + c] = float_to_half(v[i]);
                else ((float*)g.out)[pixel * oc + c] = v[i];
                break;
            default: {
                float u = v[i];
                if (g.map) u = __fmul_rn(u, g.map[inside]);
                if (g.full) u = __fmul_rn(u, g.full[(long)inside * oc + c]);
                const bool less = flipped(numbers, i, c);
                bits |= (u32)(less ? u < number_of(numbers, i, c) : u > number_of(numbers, i, c)) << i;
            }
        }
    })
    if (kind == SIGN) {
        u8* to = (u8*)g.out + (long)(p.image * g.place.rows + p.y + g.place.halo) * g.place.row +
                 (p.x + g.place.halo) * g.place.pitch + 8 * p.unit + p.byte;
        *to = (u8)bits;
        if (g.place.pair && (g.place.halo > 0 || p.x > 0)) *(to - g.place.pitch + 8) = (u8)bits;
    }
}

XN_INLINE void run_stages(const PlainArguments& a, const Place& p, float (&v)[8]) {
    const int inside = p.y * a.ow + p.x;
    const long pixel = (long)p.image * (a.oh * a.ow) + inside;
    for (int s = 0; s < a.stages; ++s) {
        const Stage& g = a.stage[s];
        run_stage(g, g.kind, p, a.oc, inside, pixel, StageNumbers{g}, v);
    }
}
