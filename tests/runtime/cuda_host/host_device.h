// The GPU instructions of src/xnorpp/runtime/cuda/kernels, played on the CPU, so that the kernels themselves run in the ordinary tests.
// A block's threads are coroutines; an instruction of a whole warp (mma, shuffle) waits until its 32 lanes are there.
// The tensor-core functions spell out the fragment layouts of the PTX manual element by element.
#pragma once
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <ucontext.h>
#include <vector>

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
struct alignas(8) uint2 { u32 x, y; };
struct alignas(16) uint4 { u32 x, y, z, w; };
struct alignas(16) float4 { float x, y, z, w; };
struct alignas(8) float2 { float x, y; };
struct dim3_ { u32 x = 0, y = 0, z = 0; };
inline uint2 make_uint2(u32 x, u32 y) { return {x, y}; }
inline uint4 make_uint4(u32 x, u32 y, u32 z, u32 w) { return {x, y, z, w}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }

#define XN_KERNEL static
#define XN_INLINE static inline
#define XN_CONSTEXPR constexpr
#define XN_SHARED u8* shared_memory = host_shared
#define __launch_bounds__(...)
#define __restrict__

static u8* host_shared;
struct Warp {
    int arrived = 0;
    u64 turn = 0;
    u32 in[32][8], out[32][4];
    int which = 0;
};
// A product of a warpgroup that is under way: sums and left operand of one lane, where they lie.
struct Product {
    int (*sums)[4];
    const u32* a;
    u64 b;
    bool add;
};
struct Thread {
    ucontext_t context;
    dim3_ index;
    bool done = false;
    bool fenced = false;
    std::vector<std::vector<Product>> groups{1};  // the last one is open
};
static std::vector<Thread>* threads;
static std::vector<Warp>* warps;
static std::vector<Warp>* warpgroups;  // only how many have arrived
static size_t host_shared_bytes;
static ucontext_t scheduler;
static int current;
static int block_arrived;
static u64 block_turn;
static dim3_ blockIdx, gridDim, blockDim;
#define threadIdx ((*threads)[current].index)

static void pause_thread() { swapcontext(&(*threads)[current].context, &scheduler); }

static void __syncthreads() {
    const u64 turn = block_turn;
    if (++block_arrived == (int)threads->size()) {
        block_arrived = 0;
        ++block_turn;
    } else
        while (block_turn == turn) pause_thread();
}

// Hands this lane's words in, lets `all` work on the 32 lanes' words once, and returns this lane's result.
template <class Work>
static const u32* with_warp(int which, const u32* words, int count, Work all) {
    Warp& w = (*warps)[current / 32];
    const int lane = current % 32;
    if (w.arrived == 0) w.which = which;
    if (w.which != which) abort();  // lanes of a warp met in different instructions
    memcpy(w.in[lane], words, count * 4);
    const u64 turn = w.turn;
    if (++w.arrived == 32) {
        all(w);
        w.arrived = 0;
        ++w.turn;
    } else
        while (w.turn == turn) pause_thread();
    return w.out[lane];
}

// A lane has at most four words of a, two of b; rows and columns as in the PTX manual, 32 bits (or 4 bytes) a word.
template <class Product>
static void product_16x8(Warp& w, int words_of_a, Product product) {
    const int halves = words_of_a / 2;  // a0, a1: rows g, g+8 of the first half of k; a2, a3 of the second
    for (int lane = 0; lane < 32; ++lane)
        for (int i = 0; i < 4; ++i) {
            const int row = lane / 4 + 8 * (i / 2), column = 2 * (lane % 4) + i % 2;
            long sum = 0;
            for (int h = 0; h < halves; ++h)
                for (int k = 0; k < 4; ++k)
                    sum += product(w.in[4 * (row % 8) + k][2 * h + row / 8], w.in[4 * column + k][words_of_a + h]);
            w.out[lane][i] = (u32)sum;
        }
}
static long and_popc(u32 a, u32 b) { return __builtin_popcount(a & b); }
static long dot4(u32 a, u32 b) {
    long sum = 0;
    for (int i = 0; i < 4; ++i) sum += (long)(u8)(a >> 8 * i) * (long)(signed char)(b >> 8 * i);
    return sum;
}
static void add4(int (&c)[4], const u32* d) { for (int i = 0; i < 4; ++i) c[i] += (int)d[i]; }
static void mma_b256(int (&c)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
    const u32 words[6] = {a0, a1, a2, a3, b0, b1};
    add4(c, with_warp(1, words, 6, [](Warp& w) { product_16x8(w, 4, and_popc); }));
}
static void mma_b128(int (&c)[4], u32 a0, u32 a1, u32 b0) {
    const u32 words[3] = {a0, a1, b0};
    add4(c, with_warp(2, words, 3, [](Warp& w) { product_16x8(w, 2, and_popc); }));
}
static void mma_u8s8(int (&c)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
    const u32 words[6] = {a0, a1, a2, a3, b0, b1};
    add4(c, with_warp(3, words, 6, [](Warp& w) { product_16x8(w, 4, dot4); }));
}
static void load_rows(int which, u32 (&a)[4], const u8* row, int pieces) {
    const u64 at = (u64)row;
    if (at % 16) abort();
    const u32 words[2] = {(u32)at, (u32)(at >> 32)};
    const u32* got = with_warp(which, words, 2, [=](Warp& w) {
        for (int lane = 0; lane < 32; ++lane)
            for (int i = 0; i < pieces; ++i) {
                const u32* from = w.in[8 * i + lane / 4];
                w.out[lane][i] = ((const u32*)((u64)from[1] << 32 | from[0]))[lane % 4];
            }
    });
    for (int i = 0; i < pieces; ++i) a[i] = got[i];
}
static void load_rows4(u32 (&a)[4], const u8* row) { load_rows(7, a, row, 4); }
static void load_rows2(u32 (&a)[4], const u8* row) { load_rows(8, a, row, 2); }
template <class Source>
static u32 shuffle(int which, u32 value, Source source) {
    return with_warp(which, &value, 1, [&](Warp& w) {
        for (int lane = 0; lane < 32; ++lane) w.out[lane][0] = w.in[source(lane)][0];
    })[0];
}
static int __shfl_xor_sync(u32, int value, int mask) {
    return (int)shuffle(4, (u32)value, [=](int lane) { return lane ^ mask; });
}
static int __shfl_up_sync(u32, int value, int by) {
    return (int)shuffle(5, (u32)value, [=](int lane) { return lane < by ? lane : lane - by; });
}
static int __shfl_sync(u32, int value, int from) {
    const u32 words[2] = {(u32)value, (u32)from};
    return (int)with_warp(9, words, 2, [](Warp& w) {
        for (int lane = 0; lane < 32; ++lane) w.out[lane][0] = w.in[w.in[lane][1] & 31][0];
    })[0];
}
static void __syncwarp() { u32 none = 0; with_warp(6, &none, 1, [](Warp&) {}); }

// Products of a warpgroup are made at the wait that names them, from the registers and the shared memory of that moment:
// what is read too early or changed too soon, the test sees. The descriptor is taken apart as in the PTX manual.
static u32 shared_address(const void* p) { return (u32)((const u8*)p - host_shared); }
static void wgmma_fence(int (&)[8][4]) { (*threads)[current].fenced = true; }
static void wgmma_keep(const u32 (&)[4]) {}
static void wgmma_commit() { (*threads)[current].groups.emplace_back(); }
static void wgmma_product(int (*d)[4], const u32 (&a)[4], u64 b, bool add) {
    if (!(*threads)[current].fenced) abort();
    (*threads)[current].groups.back().push_back({d, a, b, add});
}
// `lanes`: the same product in all 128 threads. Piece (i, k) of the right operand, eight rows of 16 bytes, begins at
// start + i * stride + k * leading.
static void wgmma_run(const Product* lanes) {
    const u64 b = lanes[0].b;
    if (b >> 46 || b >> 30 & 3 || b >> 14 & 3) abort();  // swizzled, or bits that mean nothing
    const u32 start = (b & 0x3FFF) << 4, leading = (b >> 16 & 0x3FFF) << 4, stride = (b >> 32 & 0x3FFF) << 4;
    if (start + 7 * stride + leading + 128 > host_shared_bytes) abort();
    for (int thread = 0; thread < 128; ++thread) {
        if (lanes[thread].b != b || lanes[thread].add != lanes[0].add) abort();
        const Product* warp = lanes + thread / 32 * 32;
        for (int n = 0; n < 8; ++n)
            for (int i = 0; i < 4; ++i) {
                const int row = thread % 32 / 4 + 8 * (i / 2), column = 2 * (thread % 4) + i % 2;
                long sum = 0;
                for (int k = 0; k < 8; ++k) {
                    const u8* piece = host_shared + start + n * stride + k / 4 * leading;
                    sum += dot4(warp[4 * (row % 8) + k % 4].a[2 * (k / 4) + row / 8], *(u32*)(piece + 16 * column + k % 4 * 4));
                }
                int& d = lanes[thread].sums[n][i];
                d = (lanes[0].add ? d : 0) + (int)sum;
            }
    }
}
template <int NEWER>
static void wgmma_wait(int (&)[8][4]) {
    const int first = current / 128 * 128;
    Warp& w = (*warpgroups)[current / 128];
    (*threads)[current].fenced = false;
    const u64 turn = w.turn;
    if (++w.arrived < 128) {
        while (w.turn == turn) pause_thread();
        return;
    }
    Thread* team = &(*threads)[first];
    const int done = (int)team[0].groups.size() - 1 - NEWER;
    for (int group = 0; group < done; ++group)
        for (size_t i = 0; i < team[0].groups[group].size(); ++i) {
            Product lanes[128];
            for (int thread = 0; thread < 128; ++thread) lanes[thread] = team[thread].groups[group].at(i);
            wgmma_run(lanes);
        }
    for (int thread = 0; thread < 128 && done > 0; ++thread)
        team[thread].groups.erase(team[thread].groups.begin(), team[thread].groups.begin() + done);
    w.arrived = 0;
    ++w.turn;
}

// A copy is made at once: a copy started too early spoils what is still being read, and the test sees it.
static void copy_init(u64* barrier) { if (threadIdx.x == 0) *barrier = 0; }
static void copy_init_done() {}
static void copy_start(u64* barrier, u8* to, const u8* from, u32 bytes) {
    if (threadIdx.x != 0) return;
    if (bytes % 16 || (size_t)from % 16 || (size_t)to % 16) abort();
    memcpy(to, from, bytes);
    ++*barrier;
}
static void copy_wait(u64* barrier, u32 phase, int) { while ((*barrier & 1) == phase) pause_thread(); }
static void copy16_start(float* to, const float* from, bool there) {
    if ((size_t)from % 16 || (size_t)to % 16) abort();
    if (there) memcpy(to, from, 16);
    else memset(to, 0, 16);
}
static void copy4_start(float* to, const float* from, bool there) { *to = there ? *from : 0.0f; }
static void copy16_wait() {}
static void dependency_wait() {}
static void dependency_release() {}
static u64 prefetched[3] = {0, ~0ull, 0};  // bytes, and the first and last address
static void prefetch(const void* from, u32 bytes) {
    if (bytes % 16 || (size_t)from % 16) abort();
    prefetched[0] += bytes;
    if ((size_t)from < prefetched[1]) prefetched[1] = (size_t)from;
    if ((size_t)from + bytes > prefetched[2]) prefetched[2] = (size_t)from + bytes;
}

static float __uint_as_float(u32 x) { float f; memcpy(&f, &x, 4); return f; }
static u32 __float_as_uint(float x) { u32 u; memcpy(&u, &x, 4); return u; }
static float __fmul_rn(float a, float b) { return a * b; }
static double __hiloint2double(int high, int low) {
    const uint64_t bits = (uint64_t)(uint32_t)high << 32 | (uint32_t)low;
    double d;
    memcpy(&d, &bits, 8);
    return d;
}
static float __fsqrt_rn(float a) { return sqrtf(a); }
static float __fdiv_rn(float a, float b) { return a / b; }
static float __fadd_rn(float a, float b) { return a + b; }
static float __fsub_rn(float a, float b) { float d = a - b; return d != d ? __uint_as_float(0x7fffffffu) : d; }
static float __fmaf_rn(float a, float b, float c) {
    float d = fmaf(a, b, c);
    return d != d ? __uint_as_float(0x7fffffffu) : d;
}
static float __int2float_rn(int a) { return (float)a; }
static u32 __funnelshift_l(u32 low, u32 high, int by) { return (u32)((((u64)high << 32 | low) << by) >> 32); }
static int __popc(u32 x) { return __builtin_popcount(x); }
static u32 __byte_perm(u32 x, u32 y, u32 selector) {
    const u64 all = (u64)y << 32 | x;
    u32 out = 0;
    for (int i = 0; i < 4; ++i) out |= (u32)(u8)(all >> 8 * (selector >> 4 * i & 7)) << 8 * i;
    return out;
}
static int max(int a, int b) { return a > b ? a : b; }
static float half_to_float(u16 h) { _Float16 f; memcpy(&f, &h, 2); return (float)f; }
static u16 float_to_half(float x) { _Float16 f = (_Float16)x; u16 h; memcpy(&h, &f, 2); return h; }

template <class Kernel>
static void launch_blocks(Kernel kernel, int grid, int block, size_t shared) {
    std::vector<u8> memory(shared + 256);
    host_shared = (u8*)(((size_t)memory.data() + 127) / 128 * 128);
    gridDim.x = grid;
    blockDim.x = block;
    static Kernel* running;
    constexpr size_t STACK = 256 * 1024;
    static std::vector<void*> stacks;  // kept from block to block, never cleared
    while ((int)stacks.size() < block) stacks.push_back(malloc(STACK));
    running = &kernel;
    for (int b = 0; b < grid; ++b) {
        blockIdx.x = b;
        memset(host_shared, 0xA5, shared);
        std::vector<Thread> team(block);
        std::vector<Warp> team_warps(block / 32);
        threads = &team;
        warps = &team_warps;
        std::vector<Warp> team_groups(block / 128);
        warpgroups = &team_groups;
        host_shared_bytes = shared;
        block_arrived = 0;
        for (int i = 0; i < block; ++i) {
            team[i].index.x = i;
            getcontext(&team[i].context);
            team[i].context.uc_stack.ss_sp = stacks[i];
            team[i].context.uc_stack.ss_size = STACK;
            team[i].context.uc_link = &scheduler;
            makecontext(&team[i].context, (void (*)())(+[]() { (*running)(); (*threads)[current].done = true; }), 0);
        }
        for (bool busy = true; busy;) {
            busy = false;
            for (current = 0; current < block; ++current)
                if (!team[current].done) {
                    busy = true;
                    swapcontext(&scheduler, &team[current].context);
                }
        }
    }
}

// A kernel in which no thread waits for another: one after the other, without coroutines.
template <class Kernel>
static void launch_threads(Kernel kernel, int grid, int block) {
    std::vector<Thread> one(1);
    threads = &one;
    current = 0;
    gridDim.x = grid;
    blockDim.x = block;
    for (int b = 0; b < grid; ++b) {
        blockIdx.x = b;
        for (int i = 0; i < block; ++i) {
            one[0].index.x = i;
            kernel();
        }
    }
}
