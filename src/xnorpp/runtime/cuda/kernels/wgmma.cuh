// Products of a warpgroup (four warps) on compute capability 9.0, compiled for sm_90a. They run behind the program's
// back: between `wgmma_fence` and the `wgmma_wait` that names them, sums and left operands belong to the tensor cores.
// A host build (tests) has its own versions.
#pragma once

// Where the right operand lies: rows of 32 bytes as pieces of 8 rows x 16 bytes, a piece 128 bytes in a row, the two halves
// of a row 128 bytes apart, the next eight rows 256 bytes on; no swizzle. A descriptor is the address in units of 16
// bytes and those two distances, 16 bits each; the last 16 are zero.
constexpr int WGMMA_TILE = 2048;  // bytes of 64 rows
constexpr u32 WGMMA_UPPER = 256 >> 4;
XN_INLINE u32 wgmma_operand(u32 address) { return (address >> 4 & 0x3FFF) | (128 >> 4) << 16; }

#ifdef XNORPP_HOST
template <int ADD> XN_INLINE void wgmma_u8s8(int (&d)[8][4], const u32 (&a)[4], u32 b) {
    wgmma_product(d, a, (u64)WGMMA_UPPER << 32 | b, ADD);
}
#else
#define WGMMA_SUMS_4(d, n) "+r"(d[n][0]), "+r"(d[n][1]), "+r"(d[n][2]), "+r"(d[n][3])
#define WGMMA_SUMS_32(d)                                                                                        \
    WGMMA_SUMS_4(d, 0), WGMMA_SUMS_4(d, 1), WGMMA_SUMS_4(d, 2), WGMMA_SUMS_4(d, 3), WGMMA_SUMS_4(d, 4), \
        WGMMA_SUMS_4(d, 5), WGMMA_SUMS_4(d, 6), WGMMA_SUMS_4(d, 7)
#define WGMMA_NAMES_32 \
    "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"

// d[64x64] (+)= a[64x32, unsigned bytes] * b[32x64, signed bytes]; without ADD the sums begin at zero. Each warp holds 16
// rows, its left operand as for mma_u8s8 in device.cuh, its sums as eight of that function's side by side.
template <int ADD> XN_INLINE void wgmma_u8s8(int (&d)[8][4], const u32 (&a)[4], u32 b) {
    asm volatile(
        "{\n .reg .pred add;\n .reg .b64 b;\n setp.ne.b32 add, %37, 0;\n mov.b64 b, {%36, %38};\n"
        " wgmma.mma_async.sync.aligned.m64n64k32.s32.u8.s8 {" WGMMA_NAMES_32 "}, {%32,%33,%34,%35}, b, add;\n}"
        : WGMMA_SUMS_32(d)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b), "n"(ADD), "n"(WGMMA_UPPER));
}

// Before products that take these sums further or read registers written since the last fence.
XN_INLINE void wgmma_fence(int (&d)[8][4]) { asm volatile("wgmma.fence.sync.aligned;" : WGMMA_SUMS_32(d)::"memory"); }
XN_INLINE void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

// Until all but the newest NEWER groups are done; `d` are sums of theirs, which the program may read from here on.
template <int NEWER> XN_INLINE void wgmma_wait(int (&d)[8][4]) {
    asm volatile("wgmma.wait_group.sync.aligned %32;" : WGMMA_SUMS_32(d) : "n"(NEWER) : "memory");
}

// A left operand lives until here.
XN_INLINE void wgmma_keep(const u32 (&a)[4]) { asm volatile("" ::"r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3])); }
#endif
