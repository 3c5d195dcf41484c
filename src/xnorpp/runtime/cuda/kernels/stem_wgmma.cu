// The first layer of stem.cu with products of whole warpgroups: 64 output channels, compute capability 9.0 only.
//
// What is computed, and the order of every rounding, is stem.cu's; so are the warps: 7 pooled columns and one computed
// twice, tile rows g the even, g+8 the odd convolution columns, the odd row below carried in registers. Here four such
// warps make one product of 64 rows (convolution columns) and 64 channels, the filters read by the tensor cores from
// shared memory themselves: no load a product, and the full rate of the tensor cores, of which mma.sync reaches about
// 62 %. A pooled row takes 4*KH products in four groups: high and low bytes of the even and of the odd convolution row.
// They are made in turn, high bytes, a shift, low bytes; only other warpgroups use the tensor cores meanwhile. With
// BOTH_ROWS the sums of both rows are kept, in 32 registers more, so that one's are shifted while the other's are made.
//
// Filters, 2048 bytes for 64 columns, take half of the shared memory's time: image rows stay in registers for the next
// pooled row, and the epilogue's tables are read once for STEPS of them.
//
// Macros: those of stem.cu with NP = 4 and HOLD = 0; XB is a multiple of 4, R one of STEPS; BOTH_ROWS.
#include "device.cuh"
#include "epilogue.cuh"
#include "wgmma.cuh"

struct StemArguments {
    const u8* input;        // [image][IH][IW][3]
    const u8* weight;       // [KH][hi, lo] tiles of WGMMA_TILE bytes
    const float* channel;   // [TABLES][OC]
    const void* stream_in[1];
    void* stream_out[1];
    u8* bits_out[2];
    int images;
};

static_assert(OC == 64 && NP == 4 && XB % 4 == 0, "a warpgroup makes 64 channels of 28 pooled columns");
static_assert(R % STEPS == 0 && KH >= 3, "pooled rows come in whole steps, which share image rows");
constexpr int THREADS = XB * 32;
constexpr int SPLIT = (XG + XB - 1) / XB;
constexpr int LEFT = 8;                                 // words before a row's first pixel
constexpr int WIDE = (LEFT + 28 * XB + 8 + 3) / 4 * 4;  // words a row
constexpr int DEEP = 4 * R + KH;                        // from convolution row 2*first - 1 on
constexpr int GROUPS = (OH + R - 1) / R;
constexpr int WEIGHT_BYTES = 2 * KH * WGMMA_TILE;
constexpr int TABLE_AT = WEIGHT_BYTES;
constexpr int BARRIER_AT = TABLE_AT + TABLES * OC * 4;
constexpr int PIXELS_AT = BARRIER_AT + 16;
constexpr int SHARED_BYTES = PIXELS_AT + DEEP * WIDE * 4;
constexpr int LOWEST = -2147483647 - 1;

#define word0 words[j][0]
#define word1 words[j][1]

typedef int Sums[8][4];

// KH products, the convolution row's image rows from `rows` on: one byte of the filters.
template <int ADD> XN_INLINE void products(Sums& sums, const u32 (*rows)[4], u32 filters) {
    wgmma_fence(sums);
#pragma unroll
    for (int ky = 0; ky < KH; ++ky) {
        if (ADD || ky > 0) wgmma_u8s8<1>(sums, rows[ky], filters + ky * (2 * WGMMA_TILE >> 4));
        else wgmma_u8s8<0>(sums, rows[ky], filters);
    }
    wgmma_commit();
}

// Eight pixels of an even and of an odd convolution column, two pixels to the right, as a left operand.
XN_INLINE void load_row(u32 (&row)[4], const u32* from) {
#pragma unroll
    for (int i = 0; i < 4; ++i) row[i] = from[2 * i];
}

XN_INLINE void times256(Sums& sums) {
#pragma unroll
    for (int n = 0; n < 8; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) sums[n][i] <<= 8;
}

XN_INLINE void larger(Sums& sums, const Sums& others) {
#pragma unroll
    for (int n = 0; n < 8; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) sums[n][i] = max(sums[n][i], others[n][i]);
}

// A convolution row by itself.
XN_INLINE void both_bytes(Sums& sums, const u32 (*rows)[4], u32 high, u32 low) {
    products<0>(sums, rows, high);
    wgmma_wait<0>(sums);
    times256(sums);
    products<1>(sums, rows, low);
    wgmma_wait<0>(sums);
}

#include "stem_image.cuh"

XN_KERNEL void __launch_bounds__(THREADS, BLOCKS) stem_wgmma(const StemArguments args) {
    XN_SHARED;
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    const int g = lane >> 2, t = lane & 3;
    const int xg0 = blockIdx.x % SPLIT * XB, xg = xg0 + warp;
    const int image = blockIdx.x / SPLIT / GROUPS, first = blockIdx.x / SPLIT % GROUPS * R;
    float* tables = (float*)(shared_memory + TABLE_AT);
    u64* barrier = (u64*)(shared_memory + BARRIER_AT);
    u32* pixels = (u32*)(shared_memory + PIXELS_AT);

    copy_init(barrier);
    copy_init_done();
    copy_start(barrier, shared_memory, args.weight, WEIGHT_BYTES);
    for (int i = threadIdx.x; i < TABLES * OC; i += THREADS) tables[i] = args.channel[i];
    const int top = 4 * first - 2 - PY;  // image row in shared row 0
    const u8* source = args.input + (size_t)image * IH * IW * 3;
    dependency_wait();
    dependency_release();
    load_pixels<11>(pixels, source, top, xg0);
    __syncthreads();
    copy_wait(barrier, 0, 0);

    const u32 high = wgmma_operand(shared_address(shared_memory)), low = high + (WGMMA_TILE >> 4);
    const u32* corner = pixels + LEFT - PX + 4 * (7 * warp + g - 1) + t;
    const int column = 7 * xg + g - 1;
    // The odd column to the left; where there is none (or nobody asks), the own one, which changes no maximum.
    const int left_lane = g > 0 && column > 0 ? lane - 4 : lane;

    Sums carry;
    if (first == 0) {
#pragma unroll
        for (int n = 0; n < 8; ++n)
#pragma unroll
            for (int i = 0; i < 4; ++i) carry[n][i] = LOWEST;
    } else {
        u32 rows[KH][4];
#pragma unroll
        for (int ky = 0; ky < KH; ++ky) load_row(rows[ky], corner + ky * WIDE);
        both_bytes(carry, rows, high, low);
#pragma unroll
        for (int ky = 0; ky < KH; ++ky) wgmma_keep(rows[ky]);
    }

    // Image rows of a step are KH + 2, of which KH - 2 are the next step's first.
    u32 rows[KH + 2][4];
#pragma unroll
    for (int ky = 0; ky < KH - 2; ++ky) load_row(rows[ky], corner + (ky + 2) * WIDE);
#pragma unroll 1
    for (int begin = first; begin < first + R && begin < OH; begin += STEPS) {
        int pooled[STEPS][8][2];
#pragma unroll
        for (int j = 0; j < STEPS; ++j) {
            const int py = begin + j;
            const u32* step = corner + (4 * (py - first) + 2) * WIDE;
#pragma unroll
            for (int ky = KH - 2; ky < KH + 2; ++ky) load_row(rows[ky], step + ky * WIDE);
            Sums even, odd;  // convolution rows 2*py and 2*py + 1
#if BOTH_ROWS
            products<0>(even, rows, high);
            products<0>(odd, rows + 2, high);
            wgmma_wait<1>(even);
            times256(even);
            products<1>(even, rows, low);
            wgmma_wait<1>(odd);
            times256(odd);
            products<1>(odd, rows + 2, low);
            wgmma_wait<0>(even);
            wgmma_wait<0>(odd);
#else
            both_bytes(even, rows, high, low);
            larger(even, carry);
            both_bytes(odd, rows + 2, high, low);
#endif
#pragma unroll
            for (int ky = 0; ky < KH + 2; ++ky) wgmma_keep(rows[ky]);
#pragma unroll
            for (int ky = 0; ky < KH - 2; ++ky)
#pragma unroll
                for (int i = 0; i < 4; ++i) rows[ky][i] = rows[ky + 4][i];
            // Down: rows 2py-1 (carried), 2py, 2py+1. Convolution rows and columns past the image never win.
            const bool lower = CH % 2 == 0 || 2 * py + 1 < CH;
            const bool right = CW % 2 == 0 || 2 * column + 1 < CW;
#pragma unroll
            for (int n = 0; n < 8; ++n) {
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    const int under = lower ? odd[n][i] : LOWEST;
                    even[n][i] = max(BOTH_ROWS ? max(carry[n][i], even[n][i]) : even[n][i], under);
                    carry[n][i] = under;
                    if (i >= 2 && !right) even[n][i] = LOWEST;
                }
#pragma unroll
                for (int i = 0; i < 2; ++i) {
                    const int left = __shfl_sync(~0u, even[n][2 + i], left_lane);
                    pooled[j][n][i] = max(max(even[n][i], even[n][2 + i]), left);
                }
            }
        }
        u32 words[STEPS][SIGNS > 0 ? SIGNS : 1];
#pragma unroll
        for (int j = 0; j < STEPS; ++j)
#pragma unroll
            for (int n = 0; n < (SIGNS > 0 ? SIGNS : 1); ++n) words[j][n] = 0;
#pragma unroll
        for (int p = NP - 1; p >= 0; --p) {
            const int channel = p * 16 + t * 4;
            float rest[4];  // of the mean, whole numbers
            float held[TABLES][4];
            load4(tables + channel, rest);
#pragma unroll
            for (int k = 1; k < TABLES; ++k) load4(tables + k * OC + channel, held[k]);
#define table(k, v) EACH4(v[e] = held[k][e])
#pragma unroll
            for (int j = 0; j < STEPS; ++j) {
                const bool live = g > 0 && column < OW && begin + j < OH;
                const long pixel = ((long)image * OH + begin + j) * OW + column;
                float y[4];
                EACH4(y[e] = __int2float_rn((int)((u32)pooled[j][2 * p + e / 2][e % 2] + float_bits(rest[e]))))
                EPILOGUE
            }
        }
        if (g > 0 && column < OW) {
#pragma unroll
            for (int j = 0; j < STEPS; ++j) {
                if (STEPS > 1 && begin + j >= OH) continue;
#pragma unroll
                for (int n = 0; n < SIGNS; ++n) {
                    u8* to = args.bits_out[n] + (size_t)(image * OHP + begin + j + OHALO) * OROW +
                             (column + OHALO) * OPITCH + 2 * t;
                    *(u16*)to = (u16)words[j][n];
                    // the copy beside the left neighbour
                    if (OPAIR && (OHALO > 0 || column > 0)) *(u16*)(to - OPITCH + 8) = (u16)words[j][n];
                }
            }
        }
    }
}
