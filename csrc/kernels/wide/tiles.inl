// The eight tiles of Intel's matrix unit, all of sixteen rows of 64 bytes: the instructions, or, where XNORPP_EMULATE_AMX is
// defined, the same in plain C++, which tests run on processors without them.

namespace {

#if defined(XNORPP_EMULATE_AMX)

struct EmulatedTiles {
    bool configured = false;
    alignas(64) uint8_t bytes[8][16][64];
};
thread_local EmulatedTiles emulated;

inline void begin_tiles() { emulated.configured = true; }
inline void end_tiles() { emulated.configured = false; }

template <int T>
inline void load_tile(const void *from, long stride) {
    if (!emulated.configured) __builtin_trap();
    for (int row = 0; row < 16; row++) __builtin_memcpy(emulated.bytes[T][row], (const char *)from + row * stride, 64);
}
template <int T>
inline void zero_tile() {
    if (!emulated.configured) __builtin_trap();
    __builtin_memset(emulated.bytes[T], 0, sizeof emulated.bytes[T]);
}
template <int T>
inline void store_tile(void *to, long stride) {
    if (!emulated.configured) __builtin_trap();
    for (int row = 0; row < 16; row++) __builtin_memcpy((char *)to + row * stride, emulated.bytes[T][row], 64);
}
// Sums of four products of unsigned bytes of A and signed bytes of B.
template <int C, int A, int B>
inline void multiply_tiles() {
    if (!emulated.configured) __builtin_trap();
    for (int m = 0; m < 16; m++) {
        int32_t sums[16];
        __builtin_memcpy(sums, emulated.bytes[C][m], 64);
        for (int row = 0; row < 16; row++)
            for (int n = 0; n < 16; n++)
                for (int i = 0; i < 4; i++)
                    sums[n] += (int32_t)emulated.bytes[A][m][4 * row + i] * (int32_t)(int8_t)emulated.bytes[B][row][4 * n + i];
        __builtin_memcpy(emulated.bytes[C][m], sums, 64);
    }
}

#else

struct alignas(64) TileShapes {
    uint8_t palette = 1, first_row = 0, reserved[14] = {};
    uint16_t bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
    uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};
constexpr TileShapes kShapes;

inline void begin_tiles() { __asm__ volatile("ldtilecfg %0" : : "m"(kShapes)); }
// Tiles that are in use cost time whenever a thread gives way to another.
inline void end_tiles() { __asm__ volatile("tilerelease" : : : "memory"); }

template <int T>
__attribute__((always_inline)) inline void load_tile(const void *from, long stride) {
    __asm__ volatile("tileloadd (%0,%1,1), %%tmm%c2" : : "r"(from), "r"(stride), "i"(T) : "memory");
}
template <int T>
__attribute__((always_inline)) inline void zero_tile() {
    __asm__ volatile("tilezero %%tmm%c0" : : "i"(T));
}
template <int T>
__attribute__((always_inline)) inline void store_tile(void *to, long stride) {
    __asm__ volatile("tilestored %%tmm%c2, (%0,%1,1)" : : "r"(to), "r"(stride), "i"(T) : "memory");
}
// C += A*B: sums of four products of unsigned bytes of A and signed bytes of B.
template <int C, int A, int B>
__attribute__((always_inline)) inline void multiply_tiles() {
    __asm__ volatile("tdpbusd %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(C), "i"(A), "i"(B));
}

#endif

}  // namespace
