// The instructions the kernels are made of, one small function each, so that everything else is plain C++.
// A host build (tests) defines XNORPP_HOST and brings its own versions of the ones that need a GPU.
#pragma once

#ifdef XNORPP_HOST
#include "host_device.h"
#else

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

#define XN_KERNEL extern "C" __global__
#define XN_SHARED extern __shared__ __align__(128) u8 shared_memory[]
#define XN_INLINE __device__ __forceinline__
#define XN_CONSTEXPR __device__ constexpr

// c[16x8] += popcount(a[16x256] & b[256x8]).
// Lane l = 4*g + t holds rows g (a0, a2) and g+8 (a1, a3), column g of b, and columns 2t, 2t+1 of c.
XN_INLINE void mma_b256(int (&c)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
    asm volatile(
        "mma.sync.aligned.m16n8k256.row.col.s32.b1.b1.s32.and.popc {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

XN_INLINE void mma_b128(int (&c)[4], u32 a0, u32 a1, u32 b0) {
    asm volatile(
        "mma.sync.aligned.m16n8k128.row.col.s32.b1.b1.s32.and.popc {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
        : "r"(a0), "r"(a1), "r"(b0));
}

// c[16x8] += a[16x32, unsigned bytes] * b[32x8, signed bytes].
XN_INLINE void mma_u8s8(int (&c)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
    asm volatile(
        "mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

XN_INLINE u32 shared_address(const void* p) { return (u32)__cvta_generic_to_shared(p); }

// Four (two) 8-row pieces of 16 bytes: lane 8i + j gives the address of row j of piece i and receives word t of row g of
// every piece, which is exactly the left operand above when pieces are (rows 0-7, 8-15) x (first, second 16 bytes).
XN_INLINE void load_rows4(u32 (&a)[4], const u8* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(a[0]), "=r"(a[1]), "=r"(a[2]), "=r"(a[3])
                 : "r"(shared_address(row)));
}
XN_INLINE void load_rows2(u32 (&a)[4], const u8* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0,%1}, [%2];" : "=r"(a[0]), "=r"(a[1]) : "r"(shared_address(row)));
}

// A contiguous copy from device memory into shared memory, announced by a barrier in shared memory.
// On 9.0 and newer one thread starts one bulk copy; on 8.x every thread copies its share in 16-byte pieces.
#if __CUDA_ARCH__ >= 900
XN_INLINE void copy_init(u64* barrier) {
    if (threadIdx.x == 0) asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(shared_address(barrier)));
}
XN_INLINE void copy_init_done() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
XN_INLINE void copy_start(u64* barrier, u8* to, const u8* from, u32 bytes) {
    if (threadIdx.x == 0) {
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes)
                     : "memory");
        asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                         shared_address(to)),
                     "l"(from), "r"(bytes), "r"(shared_address(barrier))
                     : "memory");
    }
}
XN_INLINE void copy_wait(u64* barrier, u32 phase, int /*newer copies in flight*/) {
    asm volatile(
        "{\n .reg .pred done;\n"
        "again: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
        " @!done bra again;\n}" ::"r"(shared_address(barrier)),
        "r"(phase)
        : "memory");
}
#else
XN_INLINE void copy_init(u64*) {}
XN_INLINE void copy_init_done() {}
XN_INLINE void copy_start(u64*, u8* to, const u8* from, u32 bytes) {
    for (u32 i = threadIdx.x * 16; i < bytes; i += blockDim.x * 16)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(to + i)), "l"(from + i) : "memory");
    asm volatile("cp.async.commit_group;" ::: "memory");
}
XN_INLINE void copy_wait(u64*, u32, int newer) {
    if (newer) asm volatile("cp.async.wait_group 1;" ::: "memory");
    else asm volatile("cp.async.wait_group 0;" ::: "memory");
    __syncthreads();
}
#endif

// Sixteen bytes by this thread into shared memory, or zeros; a wait and a barrier behind it make them everybody's.
XN_INLINE void copy16_start(float* to, const float* from, bool there) {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from), "r"(there ? 16 : 0)
                 : "memory");
#else
    *(float4*)to = there ? *(const float4*)from : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#endif
}
// The same with four bytes.
XN_INLINE void copy4_start(float* to, const float* from, bool there) {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(shared_address(to)), "l"(from), "r"(there ? 4 : 0)
                 : "memory");
#else
    *to = there ? *from : 0.0f;
#endif
}
XN_INLINE void copy16_wait() {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_all;" ::: "memory");
#endif
}

// Programmatic dependent launch: a kernel may start while the one before it drains. `dependency_wait` returns when the
// results of the one before are visible; everything above it may touch constants only.
XN_INLINE void dependency_wait() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
XN_INLINE void dependency_release() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// Asks for a contiguous piece of device memory to be brought into the second-level cache.
XN_INLINE void prefetch(const void* from, u32 bytes) {
#if __CUDA_ARCH__ >= 900
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(bytes));
#endif
}

XN_INLINE float half_to_float(u16 h) {
    float f;
    asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(h));
    return f;
}
XN_INLINE u16 float_to_half(float f) {
    u16 h;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(f));
    return h;
}
#endif  // XNORPP_HOST

// `a` bounded by a constant; NaN stays NaN.
XN_INLINE float max_or_nan(float a, float low) { return a < low ? low : a; }
XN_INLINE float min_or_nan(float a, float high) { return a > high ? high : a; }

XN_INLINE float bits_float(u32 x) { return __uint_as_float(x); }
XN_INLINE u32 float_bits(float x) { return __float_as_uint(x); }

// Four neighbouring channels of the float stream, stored as float or half; `Four` is how they wait in registers.
template <class T> struct Four { typedef float4 type; };
template <> struct Four<u16> { typedef uint2 type; };
XN_INLINE void unpack4(const float4& x, float (&v)[4]) { v[0] = x.x; v[1] = x.y; v[2] = x.z; v[3] = x.w; }
XN_INLINE void unpack4(const uint2& x, float (&v)[4]) {
    v[0] = half_to_float((u16)x.x); v[1] = half_to_float((u16)(x.x >> 16));
    v[2] = half_to_float((u16)x.y); v[3] = half_to_float((u16)(x.y >> 16));
}
XN_INLINE void load4(const float* p, float (&v)[4]) {
    unpack4(*(const float4*)p, v);
}
XN_INLINE void store4(float* p, const float (&v)[4]) { *(float4*)p = make_float4(v[0], v[1], v[2], v[3]); }
XN_INLINE void load4(const u16* p, float (&v)[4]) {
    unpack4(*(const uint2*)p, v);
}
XN_INLINE void store4(u16* p, const float (&v)[4]) {
    *(uint2*)p = make_uint2((u32)float_to_half(v[0]) | (u32)float_to_half(v[1]) << 16,
                            (u32)float_to_half(v[2]) | (u32)float_to_half(v[3]) << 16);
}
