// The real-valued first layer on 8-bit images: k x k convolution of stride 2, affine, activation, 3x3 max pooling of
// stride 2 and the first sign, in one pass over the bytes.
//
// An image is 8-bit, so its bytes are the exact left operand of an integer product. Normalisation is folded into the
// filters; each filter is 16-bit (its own step), stored as two signed bytes, w = 256*hi + lo: one pass over the taps
// with hi, the sum shifted by 8, one pass with lo, all exact in 32 bits. The only rounding is that of the filters
// (runtime/stem.py, the same numbers as on the CPU). The fourth byte of a pixel is 255 inside the image and 0
// outside; its filter carries the folded mean, so padding is zero *after* normalisation; row 0 of the table holds what
// the mean's whole numbers leave over. From there the line rounds as the CPU engine does: float(sum), times the step, ...
//
// Pooling takes the maximum of the integers: affine (made increasing by the sign of the filter) and activation keep
// order, so they run once a pooled pixel. A warp owns 7 pooled columns and 16*NP channels and walks down R pooled rows;
// tile rows g are the even, g+8 the odd convolution columns of pooled column 7*xg + g - 1. The odd row below is carried to
// the next pooled row in registers, the odd column to the left comes from the neighbouring lane; g = 0 computes nothing
// else. That is an eighth of the work done twice, and no warp ever waits for another: with an exchange between warps
// (a barrier a row) products and epilogues of all warps run in turns, 2.5 times the floor of the products.
//
// HOLD keeps both bytes of a warp's filters in registers (NP = 2: 112 of them) with a sum for each: shared memory then
// serves images only, a third of a load a product instead of 1.3, which is as much as the tensor cores can wait for.
//
// Macros: IH, IW, KH, PY, PX (kernel at most 8 wide), CH, CW (convolution), OH, OW (pooled), OC, TABLES, EPILOGUE, SIGNS,
// STREAM, OPITCH, OPAIR, OROW, OHALO, OHP; R, XG (groups of 7 columns), XB (of them a block), NP, HOLD, BLOCKS.
#include "device.cuh"
#include "epilogue.cuh"

struct StemArguments {
    const u8* input;        // [image][IH][IW][3]
    const uint4* weight;    // [OC/16][hi, lo][KH][32]
    const float* channel;   // [TABLES][OC]
    const void* stream_in[1];
    void* stream_out[1];
    u8* bits_out[2];
    int images;
};

constexpr int WN = OC / (16 * NP);
constexpr int THREADS = XB * WN * 32;
constexpr int SPLIT = (XG + XB - 1) / XB;
constexpr int LEFT = 8;                                 // words before a row's first pixel
constexpr int WIDE = (LEFT + 28 * XB + 8 + 3) / 4 * 4;  // words a row
constexpr int DEEP = 4 * R + 2 + KH;
constexpr int GROUPS = (OH + R - 1) / R;
constexpr int WEIGHT_AT = DEEP * WIDE * 4;
constexpr int WEIGHT_WORDS = HOLD ? 0 : OC / 16 * 2 * KH * 32;  // of 16 bytes
constexpr int TABLE_AT = WEIGHT_AT + WEIGHT_WORDS * 16;
constexpr int SHARED_BYTES = TABLE_AT + TABLES * OC * 4;
constexpr int LOWEST = -2147483647 - 1;

#define word0 words[0]
#define word1 words[1]

#include "stem_image.cuh"

XN_KERNEL void __launch_bounds__(THREADS, BLOCKS) stem(const StemArguments args) {
    XN_SHARED;
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    const int g = lane >> 2, t = lane & 3;
    const int wn = warp / XB, xg0 = blockIdx.x % SPLIT * XB, xg = xg0 + warp % XB;
    const int image = blockIdx.x / SPLIT / GROUPS, first = blockIdx.x / SPLIT % GROUPS * R;
    u32* pixels = (u32*)shared_memory;
    uint4* weights = (uint4*)(shared_memory + WEIGHT_AT);
    float* tables = (float*)(shared_memory + TABLE_AT);

#if HOLD
    uint4 held[2][KH][NP];
#pragma unroll
    for (int part = 0; part < 2; ++part)
#pragma unroll
        for (int ky = 0; ky < KH; ++ky)
#pragma unroll
            for (int p = 0; p < NP; ++p) held[part][ky][p] = args.weight[(((wn * NP + p) * 2 + part) * KH + ky) * 32 + lane];
#else
    for (int i = threadIdx.x; i < WEIGHT_WORDS; i += THREADS) weights[i] = args.weight[i];
#endif
    for (int i = threadIdx.x; i < TABLES * OC; i += THREADS) tables[i] = args.channel[i];
    const int top = 4 * (first - 1) - PY;  // image row in shared row 0
    const u8* source = args.input + (size_t)image * IH * IW * 3;
    dependency_wait();
    dependency_release();
    load_pixels<6>(pixels, source, top, xg0);
    __syncthreads();

    int carry[2 * NP][4];
#pragma unroll
    for (int n = 0; n < 2 * NP; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) carry[n][i] = LOWEST;
    const u32* corner = pixels + LEFT - PX + 4 * (7 * (xg - xg0) + g - 1) + t;

#pragma unroll 1
    for (int py = first == 0 ? 0 : first - 1; py < first + R && py < OH; ++py) {
        int acc[2][2 * NP][4];
#pragma unroll
        for (int m = 0; m < 2; ++m)
#pragma unroll
            for (int n = 0; n < 2 * NP; ++n)
#pragma unroll
                for (int i = 0; i < 4; ++i) acc[m][n][i] = 0;
        const u32* rows_of_step = corner + 4 * (py - first + 1) * WIDE;
#if HOLD
        int high[2][2 * NP][4];
#pragma unroll
        for (int m = 0; m < 2; ++m)
#pragma unroll
            for (int n = 0; n < 2 * NP; ++n)
#pragma unroll
                for (int i = 0; i < 4; ++i) high[m][n][i] = 0;
        u32 rows[3][4];
#pragma unroll
        for (int ky = -2; ky < KH; ++ky) {
#pragma unroll
            for (int i = 0; i < 4; ++i) rows[(ky + 3) % 3][i] = rows_of_step[(ky + 2) * WIDE + 2 * i];
            if (ky < 0) continue;
            const u32 (&a)[4] = rows[(ky + 1) % 3];
            const u32 (&below)[4] = rows[(ky + 3) % 3];
#pragma unroll
            for (int p = 0; p < NP; ++p) {
                const uint4 h = held[0][ky][p], l = held[1][ky][p];
                mma_u8s8(high[0][2 * p], a[0], a[1], a[2], a[3], h.x, h.y);
                mma_u8s8(high[0][2 * p + 1], a[0], a[1], a[2], a[3], h.z, h.w);
                mma_u8s8(acc[0][2 * p], a[0], a[1], a[2], a[3], l.x, l.y);
                mma_u8s8(acc[0][2 * p + 1], a[0], a[1], a[2], a[3], l.z, l.w);
                mma_u8s8(high[1][2 * p], below[0], below[1], below[2], below[3], h.x, h.y);
                mma_u8s8(high[1][2 * p + 1], below[0], below[1], below[2], below[3], h.z, h.w);
                mma_u8s8(acc[1][2 * p], below[0], below[1], below[2], below[3], l.x, l.y);
                mma_u8s8(acc[1][2 * p + 1], below[0], below[1], below[2], below[3], l.z, l.w);
            }
        }
#pragma unroll
        for (int m = 0; m < 2; ++m)
#pragma unroll
            for (int n = 0; n < 2 * NP; ++n)
#pragma unroll
                for (int i = 0; i < 4; ++i) acc[m][n][i] += high[m][n][i] * 256;
#else
#pragma unroll
        for (int part = 0; part < 2; ++part) {
            u32 rows[3][4];  // image rows ky, ky + 1, ky + 2 of the window: convolution rows 2py and 2py + 1 share them
#pragma unroll
            for (int ky = -2; ky < KH; ++ky) {
#pragma unroll
                for (int i = 0; i < 4; ++i) rows[(ky + 3) % 3][i] = rows_of_step[(ky + 2) * WIDE + 2 * i];
                if (ky < 0) continue;
                const u32 (&a)[4] = rows[(ky + 1) % 3];
                const u32 (&below)[4] = rows[(ky + 3) % 3];
#pragma unroll
                for (int p = 0; p < NP; ++p) {
                    const uint4 b = weights[(((wn * NP + p) * 2 + part) * KH + ky) * 32 + lane];
                    mma_u8s8(acc[0][2 * p], a[0], a[1], a[2], a[3], b.x, b.y);
                    mma_u8s8(acc[0][2 * p + 1], a[0], a[1], a[2], a[3], b.z, b.w);
                    mma_u8s8(acc[1][2 * p], below[0], below[1], below[2], below[3], b.x, b.y);
                    mma_u8s8(acc[1][2 * p + 1], below[0], below[1], below[2], below[3], b.z, b.w);
                }
            }
            if (part == 0) {
#pragma unroll
                for (int m = 0; m < 2; ++m)
#pragma unroll
                    for (int n = 0; n < 2 * NP; ++n)
#pragma unroll
                        for (int i = 0; i < 4; ++i) acc[m][n][i] <<= 8;
            }
        }
#endif
        // Down: rows 2py-1 (carried), 2py, 2py+1. Convolution rows and columns past the image never win.
        const bool lower = 2 * py + 1 < CH;
        const int column = 7 * xg + g - 1;
        const bool even = 2 * column < CW, odd = column >= 0 && 2 * column + 1 < CW;
        int best[2 * NP][4];
#pragma unroll
        for (int n = 0; n < 2 * NP; ++n)
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const int under = lower ? acc[1][n][i] : LOWEST;
                best[n][i] = max(max(carry[n][i], acc[0][n][i]), under);
                carry[n][i] = under;
                if (!(i < 2 ? even : odd)) best[n][i] = LOWEST;
            }
        int pooled[2 * NP][2];
#pragma unroll
        for (int n = 0; n < 2 * NP; ++n)
#pragma unroll
            for (int j = 0; j < 2; ++j) {
                const int left = __shfl_up_sync(~0u, best[n][2 + j], 4);
                pooled[n][j] = max(max(best[n][j], best[n][2 + j]), left);
            }
        const bool live = py >= first && g > 0 && column < OW;
        const long pixel = ((long)image * OH + py) * OW + column;
        u32 words[SIGNS > 0 ? SIGNS : 1];
#pragma unroll
        for (int n = 0; n < (SIGNS > 0 ? SIGNS : 1); ++n) words[n] = 0;
#pragma unroll
        for (int p = NP - 1; p >= 0; --p) {
            const int channel = (wn * NP + p) * 16 + t * 4;
            float y[4];
#define table(k, v) load4(tables + (k) * OC + channel, v);
            float rest[4];  // of the mean, whole numbers
            table(0, rest);
            EACH4(y[e] = __int2float_rn((int)((u32)pooled[2 * p + e / 2][e % 2] + float_bits(rest[e]))))
            EPILOGUE
        }
        const int unit = wn * NP / 4;
        const int lane_byte = NP == 4 ? 2 * t : 2 * t + wn * NP % 4 / 2;
        if (live) {
#pragma unroll
            for (int n = 0; n < SIGNS; ++n) {
                u8* to = args.bits_out[n] + (size_t)(image * OHP + py + OHALO) * OROW + (column + OHALO) * OPITCH +
                         8 * unit + lane_byte;
                const bool twice = OPAIR && (OHALO > 0 || column > 0);  // the copy beside the left neighbour
                if (NP == 4) {
                    *(u16*)to = (u16)words[n];
                    if (twice) *(u16*)(to - OPITCH + 8) = (u16)words[n];
                } else {
                    *to = (u8)words[n];
                    if (twice) *(to - OPITCH + 8) = (u8)words[n];
                }
            }
        }
    }
}
