// Prepares a convolution once, at load: geometry, weight panels, border cases.
#pragma once
#include <vector>

#include "memory.h"

namespace xnorpp {

struct ConvStore {
    Conv conv{};
    Source source = Source::Float;
    std::vector<Segment> segments;
    std::vector<uint16_t> row_case, col_case;
    Buffer weights, base, scale, offset;
};

struct ConvSpec {
    int c, h, w, o, kh, kw, sh, sw, ph, pw, dh, dw, groups, pad_value, in_stride;
};

// Bits: weight uint8 [o][kh][kw][ceil((c/groups)/8)].
ConvStore build_bit_conv(const Kernels &, const ConvSpec &, const uint8_t *weight);
// Floats: weight [o][c/groups][kh][kw], bias [o] or null.
ConvStore build_float_conv(const Kernels &, const ConvSpec &, const float *weight, const float *bias);
// A uint8 picture x that stands for (x/255 - mean)/std; groups 1, no dilation along a row.
ConvStore build_picture_conv(const Kernels &, const ConvSpec &, const float *weight, const float *bias,
                             const float *mean, const float *std);
const DotTraits &traits_of(const Kernels &, Source);
using ConvFunction = decltype(Kernels::conv_bits);
ConvFunction function_of(const Kernels &, Source);

}  // namespace xnorpp
