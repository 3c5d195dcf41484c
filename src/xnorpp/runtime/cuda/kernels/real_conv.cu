// A convolution of real numbers, one group: 128 pixels by 64 channels a block, 8 by 8 a thread.
//
// The sum of an output runs over (row of the window, column, channel) in this order, one fused multiply-add each, and begins
// with +0; a tap in the padding multiplies a zero. That is the CPU engine's sum and plain.cu's, so the result is theirs bit
// for bit: tiles share loads, never sums.
//
// The taps are taken in pieces of DEPTH of them: TAPS columns of a window's row by DEEP channels. A piece lies in shared
// memory as [tap][pixel] with its filters, [tap][64], while the next one is on its way. Of an image in planes a thread
// brings its own pixel's taps; where channels are neighbours the lanes of a warp bring neighbouring taps of one pixel, and
// pixel p of tap e lies at p ^ e%32, so that they are written to 32 banks. Filters lie as the eight channels of a thread are
// numbered (stages.cuh): the first fours of eight threads, then the second. Lane l and l^1 read the same pixels, l and l^2
// the same filters, which halves the steps of shared memory for both.
//
// Macros: IC, IH, IW, OC, OH, OW, KH, KW, SY, SX, PY, PX, DY, DX; SOURCE (0: float, 1: half, 2: bytes through a table),
// PLANES, TAPS, DEEP, UNROLL, BIAS, BLOCKS; STAGE_LINE, e.g. "STAGE(0, MULT) STAGE(1, STORE)".
#include "stages.cuh"

constexpr int THREADS = 128, PIXELS = 128;
constexpr int DEPTH = TAPS * DEEP, ACROSS = KW / TAPS, PARTS = IC / DEEP, PIECES = KH * ACROSS * PARTS;
constexpr int UNITS = (OC + 63) / 64, WIDE = UNITS * 64;
constexpr int ROW_STEP = PLANES ? IW : IW * IC, PIXEL_STEP = PLANES ? 1 : IC, CHANNEL_STEP = PLANES ? IH * IW : 1;
constexpr int FILTERS_AT = DEPTH * PIXELS, PIECE = FILTERS_AT + DEPTH * 64;  // floats
constexpr int WINDOWS_AT = 2 * PIECE * 4;                                    // where the pixels' windows begin
constexpr int SHARED_BYTES = WINDOWS_AT + (PLANES ? 0 : PIXELS * 16);
constexpr bool PADDED = PY > 0 || PX > 0;

// The first tap of a pixel's window, which may lie outside the image.
struct Window {
    long at;
    int y, x;
};

XN_INLINE Window window_of(long pixel) {
    const long image = pixel / (OH * OW);
    const int inside = (int)(pixel - image * (OH * OW)), y = inside / OW * SY - PY, x = inside % OW * SX - PX;
    return {image * (IC * IH * IW) + (long)y * ROW_STEP + x * PIXEL_STEP, y, x};
}

XN_INLINE bool in_image(int y, int x) { return !PADDED || ((u32)y < (u32)IH && (u32)x < (u32)IW); }

// What is not there is not read, wherever its address points.
XN_INLINE void bring(const PlainArguments& a, float* to, long at, int channel, bool there) {
#if SOURCE == 0
    copy4_start(to, (const float*)a.source + at, there);
#elif SOURCE == 1
    *to = there ? half_to_float(((const u16*)a.source)[at]) : 0.0f;
#else
    *to = there ? a.table[channel * 256 + ((const u8*)a.source)[at]] : 0.0f;
#endif
}

XN_KERNEL void __launch_bounds__(THREADS, BLOCKS) real_conv_tiled(const PlainArguments a) {
    XN_SHARED;
    float* pieces = (float*)shared_memory;  // [2]: inputs, filters
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const long all = (long)a.images * (OH * OW), base = (long)(blockIdx.x / UNITS) * PIXELS;
    Place p;
    p.unit = blockIdx.x % UNITS;
    p.byte = (lane & 1) | (lane >> 1 & 6);
    const int group = warp * 4 + (lane >> 1 & 1) + (lane >> 4) * 2;  // pixels 4*group to +3 and 64 behind them

    // Filters: row threadIdx.x / 16 and every eighth behind it, sixteen bytes each.
    const int slot = threadIdx.x % 16;
    const float* column = (const float*)a.weight + 64 * p.unit + slot % 2 * 32 + slot / 8 * 16 + slot % 8 / 2 * 4;
    const auto start_filters = [&](int piece, float* to) {
        const float* from = column + (long)piece * DEPTH * WIDE;
#pragma unroll
        for (int j = 0; j < DEPTH; j += 8) {
            const int e = j + threadIdx.x / 16;
            if (j + 8 <= DEPTH || e < DEPTH) copy16_start(to + FILTERS_AT + e * 64 + slot * 4, from + e * WIDE, true);
        }
    };
    // A pixel past the last is read as the last and never written.
    const long own = base + threadIdx.x < all ? base + threadIdx.x : all - 1;
    const Window mine = window_of(own);
    Window* windows = (Window*)(shared_memory + WINDOWS_AT);
    if (!PLANES) windows[threadIdx.x] = mine;
    const auto start_inputs = [&](int piece, float* to) {
        const int part = piece % PARTS, kx = piece / PARTS % ACROSS, ky = piece / (PARTS * ACROSS);
        const long shift = (long)ky * DY * ROW_STEP + kx * DX * PIXEL_STEP + part * DEEP * CHANNEL_STEP;
#if PLANES
        const long at = mine.at + shift;
        const int y = mine.y + ky * DY, x = mine.x + kx * DX;
#pragma unroll
        for (int e = 0; e < DEPTH; ++e)
            bring(a, to + e * PIXELS + threadIdx.x, at + e / DEEP * DX * PIXEL_STEP + e % DEEP * CHANNEL_STEP,
                  part * DEEP + e % DEEP, in_image(y, x + e / DEEP * DX));
#else
        for (int e = lane; e < DEPTH; e += 32) {
            const long here = shift + e / DEEP * DX * PIXEL_STEP + e % DEEP;
            const int down = ky * DY, across = kx * DX + e / DEEP * DX;
            float* row = to + e * PIXELS + (warp ^ e % 4);
#pragma unroll 1
            for (int j = 0; j < PIXELS / 4; j += 8) {  // pixels 4 * (j + i) + warp
                Window w[8];
                EACH8(w[i] = windows[4 * (j + i) + warp])
                EACH8(bring(a, row + j * 4 + (i ^ e / 4 % 8) * 4, w[i].at + here, part * DEEP + e % DEEP,
                            in_image(w[i].y + down, w[i].x + across)))
            }
        }
#endif
    };

    start_filters(0, pieces);
    if (!PLANES) __syncthreads();  // the windows
    dependency_wait();
    dependency_release();
    start_inputs(0, pieces);
    float acc[8][8];
    EACH8(for (int c = 0; c < 8; ++c) acc[i][c] = 0.0f)
#pragma unroll 1
    for (int piece = 0; piece < PIECES; ++piece) {
        const float* now = pieces + piece % 2 * PIECE;
        float* other = pieces + (piece + 1) % 2 * PIECE;
        copy16_wait();
        __syncthreads();  // this piece is here, and nobody reads the other any more
        if (piece + 1 < PIECES) {
            start_filters(piece + 1, other);
            start_inputs(piece + 1, other);
        }
        const float* filters = now + FILTERS_AT + p.byte * 4;
#pragma unroll 1
        for (int from = 0; from < DEPTH; from += UNROLL) {
#pragma unroll
            for (int j = 0; j < UNROLL; ++j) {
                const int e = from + j;
                const float* inputs = now + e * PIXELS + (PLANES ? 4 * group : 4 * group ^ e % 32 & 28);
                constexpr int TURN = PLANES ? 0 : 3;
                float u[2][4];
                float w[2][4];
                load4(inputs, u[0]);
                load4(inputs + 64, u[1]);
                load4(filters + e * 64, w[0]);
                load4(filters + e * 64 + 32, w[1]);
                EACH8(_Pragma("unroll") for (int c = 0; c < 8; ++c) acc[i][c] =
                          __fmaf_rn(u[i / 4][i % 4 ^ (j & TURN)], w[c / 4][c % 4], acc[i][c]))
            }
        }
    }

    if (channel_of(p, 0) >= OC) return;
    HeldNumbers numbers;
    if (BIAS) {
        hold(a.bias, p, OC, numbers.a);
        EACH8(_Pragma("unroll") for (int c = 0; c < 8; ++c) acc[i][c] = __fadd_rn(acc[i][c], numbers.a[c]))
    }
    const long first = base + 4 * group;
#define STAGE(s, kind)                                                                                      \
    {                                                                                                       \
        const Stage& g = a.stage[s];                                                                        \
        if (kind == MULT || kind == SHIFT || kind == AFFINE || kind == PRELU || kind == SIGN)               \
            hold(g.a, p, OC, numbers.a);                                                                    \
        if (kind == AFFINE || kind == SIGN) hold(g.flip, p, OC, numbers.flip);                              \
        EACH8(const long pixel = first + i % 4 + i / 4 * 64; if (pixel < all) {                             \
            p.image = (int)(pixel / (OH * OW));                                                             \
            const int inside = (int)(pixel - (long)p.image * (OH * OW));                                    \
            p.y = inside / OW;                                                                              \
            p.x = inside % OW;                                                                              \
            run_stage(g, kind, p, OC, inside, pixel, numbers, acc[i]);                                      \
        })                                                                                                  \
    }
    STAGE_LINE
}
