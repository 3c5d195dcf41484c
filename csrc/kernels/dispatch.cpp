#include "dispatch.h"

#include <stdexcept>

#if defined(__x86_64__)
#include <cpuid.h>
#endif
#if defined(XNORPP_HAVE_AMX)
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace xnorpp {

// One of each file of kernels, besides the generic ones.
const Kernels *avx2_kernels();
const Kernels *avx512_kernels();
const Kernels *amx_kernels();
const Kernels *neon_kernels();
const Kernels *wasm_kernels();  // csrc/wasm/kernels.cpp
bool wasm_fuses();              // whether relaxed multiply-adds round once here

namespace {

[[maybe_unused]] bool always() { return true; }

#if defined(__x86_64__)
struct Cpuid {
    unsigned a = 0, b = 0, c = 0, d = 0;
    Cpuid(unsigned leaf, unsigned sub) {
        if (__get_cpuid_max(leaf & 0x80000000u, nullptr) >= leaf) __cpuid_count(leaf, sub, a, b, c, d);
    }
};

// The operating system saves these register files (XCR0).
bool saves(unsigned long long mask) {
    if (!(Cpuid(1, 0).c >> 27 & 1)) return false;
    unsigned low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return ((low | (unsigned long long)high << 32) & mask) == mask;
}

bool has_avx2() {
    const Cpuid one(1, 0), seven(7, 0);
    const bool fma = one.c >> 12 & 1, popcnt = one.c >> 23 & 1;
    return fma && popcnt && (seven.b >> 5 & 1) && saves(0x6);
}

bool has_avx512() {
    const Cpuid seven(7, 0);
    const unsigned b = 1u << 16 | 1u << 17 | 1u << 30 | 1u << 31;  // F, DQ, BW, VL
    const unsigned c = 1u << 11 | 1u << 14;                       // VNNI, VPOPCNTDQ
    return has_avx2() && (seven.b & b) == b && (seven.c & c) == c && saves(0xe6);
}

#if defined(XNORPP_HAVE_AMX)
// Linux lends the matrix unit to processes that ask for it, once for all of their threads. A process asks when it chooses
// these kernels, and not before: signal stacks must be larger from then on.
#if defined(XNORPP_EMULATE_AMX)
bool has_amx() { return has_avx512() && (Cpuid(7, 0).c >> 1 & 1); }  // AVX512-VBMI, which all that have the unit have
const Kernels *lent_amx_kernels() { return amx_kernels(); }
#else
constexpr long kGetSupported = 0x1021, kAsk = 0x1023, kTileData = 18;  // of arch_prctl

bool has_amx() {
    const unsigned tiles = 1u << 24 | 1u << 25;  // AMX-TILE, AMX-INT8
    unsigned long long supported = 0;
    if (!has_avx512() || (Cpuid(7, 0).d & tiles) != tiles || !saves(0x600e6)) return false;
    return syscall(SYS_arch_prctl, kGetSupported, &supported) == 0 && (supported >> kTileData & 1);
}

const Kernels *lent_amx_kernels() {
    if (syscall(SYS_arch_prctl, kAsk, kTileData) == 0) return amx_kernels();
    throw std::invalid_argument("`isa` (='amx'): the system does not lend the matrix unit to this process; use 'avx512'");
}
#endif
#endif
#endif

}  // namespace

const std::vector<IsaRow> &isa_table() {
    static const std::vector<IsaRow> table = {
#if defined(XNORPP_HAVE_AVX512)
        {"avx512", avx512_kernels, has_avx512},
#else
        {"avx512", nullptr, nullptr},
#endif
#if defined(XNORPP_HAVE_AVX2)
        {"avx2", avx2_kernels, has_avx2},
#else
        {"avx2", nullptr, nullptr},
#endif
#if defined(XNORPP_HAVE_NEON)
        {"neon", neon_kernels, always},
#else
        {"neon", nullptr, nullptr},
#endif
#if defined(XNORPP_HAVE_WASM)
        {"wasm", wasm_kernels, wasm_fuses},
#else
        {"wasm", nullptr, nullptr},
#endif
#if !defined(XNORPP_NO_GENERIC)  // which a browser need not download
        {"generic", generic_kernels, always},
#endif
#if defined(XNORPP_HAVE_AMX)  // by name only: faster on a quiet core, slower on a disturbed one
        {"amx", lent_amx_kernels, has_amx},
#else
        {"amx", nullptr, nullptr},
#endif
    };
    return table;
}

std::vector<std::string> available_isas() {
    std::vector<std::string> names;
    for (const IsaRow &row : isa_table())
        if (row.kernels && row.detected()) names.push_back(row.name);
    return names;
}

const Kernels &choose_kernels(const std::string &name) {
    for (const IsaRow &row : isa_table()) {
        const bool usable = row.kernels && row.detected();
        if (name.empty() ? usable : name == row.name && usable) return *row.kernels();
        if (!name.empty() && name == row.name) {
            std::string list;
            for (const std::string &other : available_isas()) list += (list.empty() ? "" : ", ") + other;
            throw std::invalid_argument("`isa` (='" + name + "') is " +
                                        (row.kernels ? "not a feature of this processor" : "not built into this package") +
                                        "; available are " + list);
        }
    }
    std::string list;
    for (const IsaRow &row : isa_table()) list += (list.empty() ? "" : ", ") + std::string(row.name);
    throw std::invalid_argument("`isa` (='" + name + "') is unknown; known are " + list);
}

}  // namespace xnorpp
