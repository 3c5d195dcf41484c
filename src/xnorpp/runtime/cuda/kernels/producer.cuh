// What a kernel of one producer is made of: its thread, its epilogue, and how it reads values of any rank. A part of plain.cu
// and of the kernels of every family of operations (cuda/operations).
#pragma once
#include "stages.cuh"

constexpr int THREADS = 128;

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

// Number `c` of pixel `at` of the source, whose pixels are its axes after the first, in order.
XN_INLINE float source_at(const PlainArguments& a, int image, long at, int c) {
    return fetch(a, image, (int)(at / a.w), (int)(at % a.w), c);
}

// The same of a further input, the second one being number 0.
XN_INLINE float operand_at(const PlainArguments& a, int which, int image, long at, int c) {
    const Operand& o = a.operand[which];
    const long place = ((long)image * o.pixels + at) * o.c + c;
    return o.half ? half_to_float(((const u16*)o.data)[place]) : ((const float*)o.data)[place];
}

XN_INLINE long pixel_of(const PlainArguments& a, const Place& p) { return (long)p.y * a.ow + p.x; }
