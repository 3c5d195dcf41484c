// AMX: Intel's matrix unit, on Xeons since Sapphire Rapids. Binary convolutions that it computes faster, and the stem of
// ImageNet networks; everything else is AVX-512's.
#include <immintrin.h>

#include <utility>

#include "../kernels.h"
#include "planes.h"

namespace xnorpp {

#if defined(XNORPP_EMULATE_AMX) && !defined(XNORPP_HAVE_AVX512)
const Kernels *avx512_kernels() { return generic_kernels(); }  // a test of this file alone
#else
const Kernels *avx512_kernels();
#endif

#include "lanes.inl"
#include "../curves.inl"
#include "../epilogue.inl"
#include "tiles.inl"
#include "matrix.inl"
#include "stem_tiles.inl"

const Kernels *amx_kernels() {
    static constexpr Matrix matrix = {takes_matrix, pack_matrix, unpack_matrix, conv_matrix, pack_stem};
    static const Kernels kernels = [] {
        Kernels all = *avx512_kernels();
        all.name = "amx", all.matrix = &matrix, all.limits = true, all.conv_pooled = conv_pooled_tiles;
        return all;
    }();
    return &kernels;
}

}  // namespace xnorpp
