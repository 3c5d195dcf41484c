// Binary convolution as an implicit matrix product on one-bit tensor cores, with everything behind it fused.
//
// Arithmetic. With bits a, w in {0, 1} standing for -1, +1, over the n taps inside the image,
//     dot = sum (2a-1)(2w-1) = 4*popc(a & w) - 2*popc(a) + (n - 2*popc(w)).
// popc(a & w) is the tensor core's product; popc(a) is the same product with a filter of ones, one extra instruction
// beside 2*NP; the last term is a constant a filter and border case (`constant`). Outside the image the bits buffer
// holds a halo of zeros (ones for padding +1), so the loop has no borders at all.
//
// Layout. Bits: [image][row][pixel][PITCH bytes], in chunks of 16 bytes. A group of 64 channels is 8 bytes; within it
// channel 16p + 4t + e sits at bit 16t + 4p + e, so that each lane's results are neighbouring bits and neighbouring
// floats. With at most 64 channels (PAIR) a chunk holds a pixel and its right neighbour, i.e. two taps. A step of the
// loop is two chunks, 256 bits, chunks ordered (ky, kx, part of the pixel). Weights are stored as the lanes read them:
// [channels/16][step][lane] of 16 bytes = (b0, b1) of two 8-column tiles.
//
// Scaled integers. An accumulator's bits read as a float are acc * 2^-149 (a subnormal), so one fused multiply-add by
// 2^127 gives dot * 2^-24 exactly; `pixel` holds the spatial factor times 2^24 and the product is dot*spatial, rounded
// once, as in the reference.
//
// A block computes BLOCK_M pixels by BLOCK_N channels, WM x WN warps of MT*16 x NP*16, ML times down the pixels, and
// walks over the tiles slot, slot + slots, ... with the next tile's input in flight.
//
// Macros of a layer: PARTS (chunks a pixel), PAIR, PITCH, ROW (bytes a row), HALO, IHP (rows an image, halo included), KH, KW, SY,
// SX, DY, DX, PY, PX, OH, OW, OC; output bits OPITCH, OPAIR, OROW, OHALO, OHP; CASES, FULL (a factor for each output value);
// TABLES (rows of the channel table); SIGNS, EPILOGUE; POOL, POOLED, POOL_BITS, QPITCH, QPAIR, QROW, QHALO, QHP (2x2 mean of the result);
// SIDE_U (units of a fused 1x1 shortcut), SIDE_*; STREAM (float or u16 for half), RESIDUALS (streams added, first ones); tile: WM, WN, MT, NP, ML, ROWS, STAGES,
// HOLD (keep the weights in registers), AHEAD (16-channel groups whose residual is read at once), TAIL128, BLOCKS (resident blocks aimed at).
#include "device.cuh"
#include "epilogue.cuh"

struct Arguments {
    const u8* input;
    const uint4* weight;
    const float* channel;   // [TABLES][OC]
    const float* constant;  // [CASES][OC], times 2^-24
    const float4* pixel;    // [OH*OW]: spatial * 2^24, border case, the shortcut's spatial * 2^24, and where the
                            // pixel's bits go in its image (the second and fourth are integers)
    const float* full;      // [OH*OW][OC], times 2^24
    const void* stream_in[2];
    void* stream_out[2];
    u8* bits_out[3];
    const u8* side;
    const uint4* side_weight;    // [OC/16][32]
    const float* side_constant;  // [OC], times 2^-24
    int images;
    int tiles;
};

constexpr int STRIDE_X = PAIR && DX == 1 ? 2 : 1;  // taps a chunk
constexpr int KX = (KW + STRIDE_X - 1) / STRIDE_X;
constexpr int CHUNKS = KH * KX * PARTS;
constexpr bool REST = CHUNKS % 2;
constexpr bool SHORT_TAIL = TAIL128 && REST;
constexpr int STEPS = (CHUNKS + 1) / 2;
constexpr int WHOLE = STEPS - SHORT_TAIL;
constexpr int THREADS = WM * WN * 32;
constexpr int BLOCK_N = WN * NP * 16;
constexpr int WARP_M = MT * 16;
constexpr int BLOCK_M = WM * WARP_M * ML;
constexpr int TILE_BYTES = ROWS * ROW;
constexpr int TILE_SPACE = (TILE_BYTES + 127) / 128 * 128;
constexpr int WEIGHT_BYTES = WN * NP * STEPS * 512;
constexpr int SIDE_BYTES = SIDE_U ? WN * NP * 512 : 0;
constexpr int CASE_STRIDE = BLOCK_N + 16;
constexpr int WEIGHT_AT = STAGES * TILE_SPACE;
constexpr int SIDE_AT = WEIGHT_AT + WEIGHT_BYTES;
constexpr int TABLE_AT = SIDE_AT + SIDE_BYTES;
constexpr int CASE_AT = TABLE_AT + (TABLES + 1) * BLOCK_N * 4;
constexpr int BARRIER_AT = (CASE_AT + CASES * CASE_STRIDE * 4 + 15) / 16 * 16;
constexpr int SHARED_BYTES = BARRIER_AT + (STAGES + 1) * 8;

struct Where {
    int image, y, x;
};

// Pixel m of the walk. Plain: rows of the image one after the other. POOL: 2x2 windows one after the other, so that a
// thread has the four pixels of a window: rows g and g+8 of two tiles.
XN_INLINE Where locate(int m) {
    Where w;
#if POOL
    const int window = m / 32 * 8 + m % 8;
    w.image = window / (OH / 2 * (OW / 2));
    const int rest = window - w.image * (OH / 2 * (OW / 2));
    w.y = rest / (OW / 2);
    w.x = (rest - w.y * (OW / 2)) * 2 + m / 8 % 2;
    w.y = w.y * 2 + m / 16 % 2;
#else
    w.image = m / (OH * OW);
    const int rest = m - w.image * (OH * OW);
    w.y = rest / OW;
    w.x = rest - w.y * OW;
#endif
    return w;
}

// First row of the bits buffer a tile reads.
XN_INLINE int first_row(int tile) {
    Where w = locate(tile * BLOCK_M);
    return w.image * IHP + w.y * SY + HALO - PY;
}

// The next tile's residual is asked for while this one computes: epilogues then wait for the cache, not for memory.
// POOL: a lane for each row the tile's windows touch, and of that row only their pixels.
XN_INLINE void prefetch_residual(const Arguments& args, int tile) {
#if RESIDUALS
#if POOL
    constexpr int WINDOWS = BLOCK_M / 4, WIDE = OW / 2, TOUCHED = 2 * ((WINDOWS - 1) / WIDE + 2);
    if (threadIdx.x >= (TOUCHED < 32 ? TOUCHED : 32) || blockIdx.x % (OC / BLOCK_N) != 0) return;
    const int all = args.images * (OH / 2) * WIDE, start = tile * WINDOWS, stop = start + WINDOWS < all ? start + WINDOWS : all;
    for (int row = start / WIDE * 2 + threadIdx.x; row / 2 * WIDE < stop; row += 32) {
        const int left = row / 2 * WIDE, right = left + WIDE < stop ? left + WIDE : stop, first = left > start ? left : start;
        const long from = (long)row * OW + 2 * (first - left);
        const int count = 2 * (right - first);
#else
    if (threadIdx.x != 0 || blockIdx.x % (OC / BLOCK_N) != 0) return;
    {
        const long end = (long)args.images * OH * OW, from = (long)tile * BLOCK_M, past = from + BLOCK_M;
        const int count = (int)((past < end ? past : end) - from);
#endif
#pragma unroll
        for (int k = 0; k < RESIDUALS; ++k)
            prefetch((const STREAM*)args.stream_in[k] + from * OC, (u32)(count * OC * sizeof(STREAM)));
    }
#endif
}

// Where a chunk lies, from the top left corner of the window. One past the last has zero weights.
XN_CONSTEXPR int chunk_tap(int chunk) { return (chunk < CHUNKS ? chunk : CHUNKS - 1) / PARTS; }
XN_CONSTEXPR int chunk_offset(int chunk) {
    return chunk_tap(chunk) / KX * DY * ROW + chunk_tap(chunk) % KX * STRIDE_X * DX * PITCH +
           (chunk < CHUNKS ? chunk : CHUNKS - 1) % PARTS * 16;
}
// Bits of a chunk that count: none past the end, the first half where the right neighbour is no tap.
XN_INLINE u32 chunk_ones(int chunk, int t) {
    if (chunk >= CHUNKS) return 0;
    if (PAIR && !(STRIDE_X == 2 && chunk_tap(chunk) % KX * 2 + 1 < KW)) return t < 2 ? ~0u : 0u;
    return ~0u;
}
XN_CONSTEXPR bool even_steps() {
    for (int s = 1; s < WHOLE; ++s)
        if (chunk_offset(2 * s + 1) - chunk_offset(2 * s) != chunk_offset(1) - chunk_offset(0)) return false;
    return true;
}

// An image of at most 64 channels keeps a second copy of a pixel with its left neighbour.
template <bool PAIRED, int STEP, int MARGIN>
XN_INLINE void store_bits(u8* to, u32 word, int x) {
    if (NP == 4) *(u16*)to = (u16)word;
    else *to = (u8)word;
    if (PAIRED && (MARGIN > 0 || x > 0)) {
        if (NP == 4) *(u16*)(to - STEP + 8) = (u16)word;
        else *(to - STEP + 8) = (u8)word;
    }
}

#define word0 words[0][mt][r]
#define word1 words[1][mt][r]
#define word2 pooled_words[mt]
// The result may be written over the residual, so the compiler keeps every read behind the write before it, and a warp
// would wait for memory MT*2*NP times a tile. The reads of AHEAD groups are therefore made first, all in flight.
typedef Four<STREAM>::type Waiting;
#if RESIDUALS
#undef RESIDUAL
#define RESIDUAL(k, r_) unpack4(waiting[k][p % AHEAD][mt][r], r_);
#endif
// The fused shortcut z joins the stream as a residual would.
#define SIDE_SCALE(k) { float m_[4]; table(k, m_); EACH4(z[e] = __fmul_rn(z[e], m_[e])) }
#define SIDE_SHIFT(k) { float s_[4]; table(k, s_); EACH4(z[e] = __fadd_rn(z[e], s_[e])) }
#define SIDE_AFFINE(k, l) { float m_[4], s_[4]; table(k, m_); table(l, s_); EACH4(z[e] = __fmaf_rn(z[e], m_[e], s_[e])) }
#define SIDE_ADD EACH4(y[e] = __fadd_rn(y[e], z[e]))

XN_KERNEL void __launch_bounds__(THREADS, BLOCKS) binary_conv(const Arguments args) {
    XN_SHARED;
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    const int g = lane >> 2, t = lane & 3;
    const int wm = warp % WM, wn = warp / WM;
    constexpr int NBLOCKS = OC / BLOCK_N;
    const int nblock = blockIdx.x % NBLOCKS, slot = blockIdx.x / NBLOCKS, slots = gridDim.x / NBLOCKS;
    const int channel0 = nblock * BLOCK_N;
    u64* barriers = (u64*)(shared_memory + BARRIER_AT);
    float* tables = (float*)(shared_memory + TABLE_AT);
    float* cases = (float*)(shared_memory + CASE_AT);
    const int end = args.images * OH * OW;

    for (int i = 0; i <= STAGES; ++i) copy_init(barriers + i);
    copy_init_done();
    __syncthreads();
    copy_start(barriers + STAGES, shared_memory + WEIGHT_AT,
               (const u8*)(args.weight + (size_t)nblock * WN * NP * STEPS * 32), WEIGHT_BYTES);
    for (int i = threadIdx.x; i < TABLES * BLOCK_N; i += THREADS)
        tables[i] = args.channel[i / BLOCK_N * OC + channel0 + i % BLOCK_N];
    for (int i = threadIdx.x; i < CASES * BLOCK_N; i += THREADS)
        cases[i / BLOCK_N * CASE_STRIDE + i % BLOCK_N] = args.constant[i / BLOCK_N * OC + channel0 + i % BLOCK_N];
#if SIDE_U
    for (int i = threadIdx.x; i < BLOCK_N; i += THREADS) tables[TABLES * BLOCK_N + i] = args.side_constant[channel0 + i];
    for (int i = threadIdx.x; i < SIDE_BYTES / 16; i += THREADS)
        ((uint4*)(shared_memory + SIDE_AT))[i] = args.side_weight[nblock * WN * NP * 32 + i];
#endif
    dependency_wait();
    dependency_release();
    if (slot < args.tiles) {
        prefetch_residual(args, slot);
        copy_start(barriers, shared_memory, args.input + (size_t)first_row(slot) * ROW, TILE_BYTES);
    }
    copy_wait(barriers + STAGES, 0, 1);
    __syncthreads();

    const u8* weights = shared_memory + WEIGHT_AT + wn * NP * STEPS * 512 + lane * 16;
#if HOLD
    uint4 held[STEPS][NP];
#pragma unroll
    for (int s = 0; s < STEPS; ++s)
#pragma unroll
        for (int p = 0; p < NP; ++p) held[s][p] = *(const uint4*)(weights + (p * STEPS + s) * 512);
#define WEIGHT(p, s) held[s][p]
#else
#define WEIGHT(p, s) *(const uint4*)(weights + ((p) * STEPS + (s)) * 512)
#endif
    // Lanes 0-15 give the rows of a step's first chunk, lanes 16-31 those of its second. Folds to constants and one
    // lane-dependent number when second chunks always lie as far from the first.
    constexpr bool EVEN = even_steps();
    const int second = lane >> 4;
    const int shift = EVEN ? second * (chunk_offset(1) - chunk_offset(0)) : 0;
    int offset[STEPS];
#pragma unroll
    for (int s = 0; s < STEPS; ++s)
        offset[s] = EVEN || !second ? chunk_offset(2 * s) : chunk_offset(2 * s + 1);

    int turn = 0;
    for (int tile = slot; tile < args.tiles; tile += slots, ++turn) {
        const int stage = turn % STAGES;
        if (STAGES > 1 && tile + slots < args.tiles)
            copy_start(barriers + (turn + 1) % STAGES, shared_memory + (turn + 1) % STAGES * TILE_SPACE,
                       args.input + (size_t)first_row(tile + slots) * ROW, TILE_BYTES);
        if (tile + slots < args.tiles) prefetch_residual(args, tile + slots);
        copy_wait(barriers + stage, turn / STAGES & 1, STAGES > 1 && tile + slots < args.tiles);
        const u8* staged = shared_memory + stage * TILE_SPACE;
        const int top = first_row(tile);

#pragma unroll 1
        for (int ml = 0; ml < ML; ++ml) {
            const int base = tile * BLOCK_M + (ml * WM + wm) * WARP_M;
            if (base >= end) break;
            const u8* window[MT];
#pragma unroll
            for (int mt = 0; mt < MT; ++mt) {
                const Where w = locate(base + mt * 16 + (lane & 15));
                // Pixels past the end read the tile's first window and are not stored.
                const int at = w.image < args.images
                             ? (w.image * IHP + w.y * SY + HALO - PY - top) * ROW + (w.x * SX + HALO - PX) * PITCH
                             : 0;
                window[mt] = staged + at + shift;
            }
            int acc[MT][2 * NP][4];
            int ones[MT][4];
#pragma unroll
            for (int mt = 0; mt < MT; ++mt) {
#pragma unroll
                for (int i = 0; i < 4; ++i) ones[mt][i] = 0;
#pragma unroll
                for (int n = 0; n < 2 * NP; ++n)
#pragma unroll
                    for (int i = 0; i < 4; ++i) acc[mt][n][i] = 0;
            }
#pragma unroll
            for (int s = 0; s < WHOLE; ++s) {
                u32 a[MT][4];
#pragma unroll
                for (int mt = 0; mt < MT; ++mt) load_rows4(a[mt], window[mt] + offset[s]);
#pragma unroll
                for (int p = 0; p < NP; ++p) {
                    const uint4 b = WEIGHT(p, s);
#pragma unroll
                    for (int mt = 0; mt < MT; ++mt) {
                        mma_b256(acc[mt][2 * p], a[mt][0], a[mt][1], a[mt][2], a[mt][3], b.x, b.y);
                        mma_b256(acc[mt][2 * p + 1], a[mt][0], a[mt][1], a[mt][2], a[mt][3], b.z, b.w);
                    }
                }
#pragma unroll
                for (int mt = 0; mt < MT; ++mt)
                    mma_b256(ones[mt], a[mt][0], a[mt][1], a[mt][2], a[mt][3], chunk_ones(2 * s, t), chunk_ones(2 * s + 1, t));
            }
            if (SHORT_TAIL) {
                u32 a[MT][4];
#pragma unroll
                for (int mt = 0; mt < MT; ++mt) load_rows2(a[mt], window[mt] - shift + chunk_offset(CHUNKS - 1));
#pragma unroll
                for (int p = 0; p < NP; ++p) {
                    const uint4 b = WEIGHT(p, STEPS - 1);
#pragma unroll
                    for (int mt = 0; mt < MT; ++mt) {
                        mma_b128(acc[mt][2 * p], a[mt][0], a[mt][1], b.x);
                        mma_b128(acc[mt][2 * p + 1], a[mt][0], a[mt][1], b.z);
                    }
                }
#pragma unroll
                for (int mt = 0; mt < MT; ++mt) mma_b128(ones[mt], a[mt][0], a[mt][1], chunk_ones(CHUNKS - 1, t));
            }
            // From accumulators to floats and bits.
            const float two127 = 1.7014118346046923e38f, minus_two126 = -8.507059173023462e37f;
            float spatial[MT][2], counted[MT][2];
            int border[MT][2];
            int bits_at[MT][2];
            int place[MT][2];  // pixel index in the output image, or -1
#if SIDE_U
            float side_spatial[MT][2], side_counted[MT][2];
            uint2 side[MT][2];
#endif
#pragma unroll
            for (int mt = 0; mt < MT; ++mt)
#pragma unroll
                for (int r = 0; r < 2; ++r) {
                    const Where w = locate(base + mt * 16 + r * 8 + g);
                    const bool live = w.image < args.images;
                    const float4 about = args.pixel[live ? w.y * OW + w.x : 0];
                    spatial[mt][r] = about.x;
                    border[mt][r] = (int)float_bits(about.y) * CASE_STRIDE + wn * NP * 16 + t * 4;
                    counted[mt][r] = __fmul_rn(bits_float((u32)ones[mt][2 * r]), minus_two126);
                    bits_at[mt][r] = w.image * (OHP * OROW) + (int)float_bits(about.w);
                    place[mt][r] = live ? (w.image * OH + w.y) * OW + w.x : -1;
#if SIDE_U
                    side_spatial[mt][r] = about.z;
                    uint2 unit = make_uint2(0, 0);
                    if (live && t < SIDE_U)
                        unit = *(const uint2*)(args.side +
                                               (size_t)(w.image * SIDE_HP + w.y * SIDE_S + SIDE_HALO) * SIDE_ROW +
                                               (w.x * SIDE_S + SIDE_HALO) * SIDE_PITCH + 8 * t);
                    int count = __popc(unit.x) + __popc(unit.y);
                    count += __shfl_xor_sync(~0u, count, 1);
                    count += __shfl_xor_sync(~0u, count, 2);
                    side_counted[mt][r] = __fmul_rn(bits_float((u32)count), minus_two126);
                    side[mt][r] = unit;
#endif
                }
            u32 words[SIGNS > 0 ? SIGNS : 1][MT][2];
            u32 pooled_words[MT];
#if RESIDUALS
            Waiting waiting[RESIDUALS][AHEAD][MT][2];
#endif
#pragma unroll
            for (int mt = 0; mt < MT; ++mt) {
                pooled_words[mt] = 0;
#pragma unroll
                for (int n = 0; n < (SIGNS > 0 ? SIGNS : 1); ++n) words[n][mt][0] = words[n][mt][1] = 0;
            }
#pragma unroll
            for (int p = NP - 1; p >= 0; --p) {
                const int in_block = (wn * NP + p) * 16 + t * 4, channel = channel0 + in_block;
#if RESIDUALS
                if (p % AHEAD == AHEAD - 1) {
#pragma unroll
                    for (int k = 0; k < RESIDUALS; ++k)
#pragma unroll
                        for (int q = AHEAD - 1; q >= 0; --q)
#pragma unroll
                            for (int mt = 0; mt < MT; ++mt)
#pragma unroll
                                for (int r = 0; r < 2; ++r)
                                    waiting[k][q][mt][r] =
                                        *(const Waiting*)((const STREAM*)args.stream_in[k] +
                                                          (long)max(place[mt][r], 0) * OC + channel + (q - AHEAD + 1) * 16);
                }
#endif
                float rows[TABLES + 1][4];
#pragma unroll
                for (int k = 0; k < TABLES + (SIDE_U > 0); ++k) load4(tables + k * BLOCK_N + in_block, rows[k]);
#define table(k, v) EACH4(v[e] = rows[k][e])
#if SIDE_U
                int side_acc[MT][2][4];
                const uint4 b = ((const uint4*)(shared_memory + SIDE_AT))[(wn * NP + p) * 32 + lane];
#pragma unroll
                for (int mt = 0; mt < MT; ++mt) {
#pragma unroll
                    for (int i = 0; i < 4; ++i) side_acc[mt][0][i] = side_acc[mt][1][i] = 0;
                    mma_b256(side_acc[mt][0], side[mt][0].x, side[mt][1].x, side[mt][0].y, side[mt][1].y, b.x, b.y);
                    mma_b256(side_acc[mt][1], side[mt][0].x, side[mt][1].x, side[mt][0].y, side[mt][1].y, b.z, b.w);
                }
#endif
#if POOL
                float mean[4];
#endif
#pragma unroll
                for (int mt = 0; mt < MT; ++mt) {
#pragma unroll
                    for (int r = 0; r < 2; ++r) {
                        const bool live = place[mt][r] >= 0;
                        const long pixel = place[mt][r];
                        float fixed[4], y[4];
                        load4(cases + border[mt][r] + p * 16, fixed);
                        EACH4(y[e] = __fmaf_rn(bits_float((u32)acc[mt][2 * p + e / 2][2 * r + e % 2]), two127,
                                               __fadd_rn(fixed[e], counted[mt][r])))
#if FULL
                        float factor[4];
                        load4(args.full + (live ? pixel % (OH * OW) : 0) * OC + channel, factor);
                        EACH4(y[e] = __fmul_rn(y[e], factor[e]))
#else
                        EACH4(y[e] = __fmul_rn(y[e], spatial[mt][r]))
#endif
#if SIDE_U
                        float z[4];
                        EACH4(z[e] = __fmul_rn(
                                  __fmaf_rn(bits_float((u32)side_acc[mt][e / 2][2 * r + e % 2]), two127,
                                            __fadd_rn(rows[TABLES][e], side_counted[mt][r])), side_spatial[mt][r]))
#endif
                        EPILOGUE
#if POOL
                        if (mt % 2 == 0 && r == 0) { EACH4(mean[e] = y[e]) }
                        else { EACH4(mean[e] = __fadd_rn(mean[e], y[e])) }
                        if (mt % 2 == 1 && r == 1) {
                            EACH4(y[e] = __fmul_rn(mean[e], 0.25f))
                            const long pixel = live ? (place[mt][r] / (2 * OW)) * (OW / 2) + place[mt][r] % OW / 2 : -1;
                            (void)pixel;
                            POOLED
                        }
#endif
                    }
                }
            }
            // One store a pixel and 64 channels: lane t has 16 neighbouring bits (8 when a warp has 32 channels).
            const int at = (channel0 + wn * NP * 16) / 64 * 8 + (NP == 4 ? 2 * t : 2 * t + (channel0 / 16 + wn * NP) % 4 / 2);
#pragma unroll
            for (int mt = 0; mt < MT; ++mt)
#pragma unroll
                for (int r = 0; r < 2; ++r) {
                    if (place[mt][r] < 0) continue;
#pragma unroll
                    for (int n = 0; n < SIGNS; ++n)
                        store_bits<OPAIR, OPITCH, OHALO>(args.bits_out[n] + (size_t)(u32)bits_at[mt][r] + at, words[n][mt][r],
                                                         place[mt][r] % OW);
#if POOL
                    if (mt % 2 == 1 && r == 1 && POOL_BITS) {
                        const Where w = locate(base + mt * 16 + r * 8 + g);
                        store_bits<QPAIR, QPITCH, QHALO>(args.bits_out[2] +
                                                             (size_t)(w.image * QHP + w.y / 2 + QHALO) * QROW +
                                                             (w.x / 2 + QHALO) * QPITCH + at,
                                                         pooled_words[mt], w.x / 2);
                    }
#endif
                }
        }
        __syncthreads();
        if (STAGES == 1 && tile + slots < args.tiles)
            copy_start(barriers, shared_memory, args.input + (size_t)first_row(tile + slots) * ROW, TILE_BYTES);
    }
}
