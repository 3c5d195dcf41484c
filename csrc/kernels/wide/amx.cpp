// AMX: Intel's matrix unit, on Xeons since Sapphire Rapids. Binary convolutions that it computes faster; everything else is
// AVX-512's.
#include <immintrin.h>

#include <utility>

#include "../kernels.h"
#include "planes.h"

namespace xnorpp {

#include "lanes.inl"
#include "../curves.inl"
#include "../epilogue.inl"
#include "tiles.inl"
#include "matrix.inl"

#if defined(XNORPP_EMULATE_AMX) && !defined(XNORPP_HAVE_AVX512)
const Kernels *avx512_kernels() { return generic_kernels(); }  // a test of this file alone
#else
const Kernels *avx512_kernels();
#endif

const Kernels *amx_kernels() {
    static constexpr Matrix matrix = {takes_matrix, pack_matrix, conv_matrix};
    static const Kernels kernels = [] {
        Kernels all = *avx512_kernels();
        all.name = "amx", all.matrix = &matrix, all.limits = true;
        return all;
    }();
    return &kernels;
}

}  // namespace xnorpp
