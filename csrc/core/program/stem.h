// The first convolution on the bytes of an image: whole-numbered filters, the same for every engine.
//
// A byte x of channel c stands for (x/255 - mean_c)/std_c, and padding is zero after that. With g = w/(255*std_c) = scale*q a
// convolution is a sum of whole numbers, exact in 32 bits, and one product:
//
//     y = scale * ( sum over the taps inside of ( sum_c q_c x_c + 255*m ) + rest ) + bias,
//
// q and m in 16 bits, `m` a tap's part of the mean. The sum has one value whatever the order, so engines that round
// float32(sum), its product with the scale and the bias in turn agree in every bit.
//
// Files of version 2 hold q, m, rest and scale where they are wanted (`byte_weight`, ...), and nothing is decided here. Files
// of version 1 do not, and their engines have always rounded stems of at least 7x7 with a stride of at least 2.
//
// Rounding. Images are smooth: neighbouring pixels and the channels of one pixel are alike, with a correlation of about r to
// the power of the distance. A patch is off by sum e*x, e = q - g/scale, and for such x the least squares answer (Babai's
// nearest plane, whose triangular factor is r**distance along each axis) rounds one tap after the other and passes on what
// it was off by: e is a product of differences (1 - r*shift) along rows, columns and channels of numbers of at most 1/2. On
// photographs that is many times nearer to the real filters than rounding each tap to the nearest, and |e| stays below 4.
#pragma once
#include "plan.h"

namespace xnorpp {

struct ByteFilters {
    std::vector<int16_t> taps;        // [o][c][kh][kw]
    std::vector<int32_t> mean, rest;  // [o][kh][kw], [o]
    std::vector<float> scale;         // [o]
};

// Rounds real filters [o][c][kh][kw]. The scale leaves room for what an engine may add up in 16 bits: the sums of taps two
// columns apart (csrc/kernels/stem/image_pair.inl), where `sums_of_rows` are wanted also of up to four rows of them, eight taps
// (image_eight.inl: two products in place of five, for one bit or two of a filter's precision), and for whole sums of 32 bits.
ByteFilters round_filters(const std::vector<float> &weight, int64_t o, int64_t c, int64_t kh, int64_t kw,
                          const std::vector<double> &mean, const std::vector<double> &std, int64_t stride, bool sums_of_rows = false);

// Which convolution takes the bytes themselves: what the file states (in version 1 a large stem); a large stem; any that can.
enum class ByteRule : uint8_t { Stated, Large, Any };
// Its step, or -1.
int byte_step(const Program &program, const std::vector<PlanStep> &steps, ByteRule rule = ByteRule::Stated);

// The filters of that step: the file's, or rounded here.
ByteFilters byte_filters(const Program &program, const PlanStep &step);

// What `int_conv2d` computes with: whole numbers [o][c][kh][kw], the factor of their sums [o], and how the input is rounded.
std::vector<int16_t> whole_taps(const Program &program, const Operation &op);
struct WholeFilters {
    std::vector<float> scale;
    float steps = 1, limit = 1;
};
WholeFilters whole_filters(const Program &program, const Operation &op);

// Real filters [o][c/groups][kh][kw] of an operation, whatever its weight's encoding.
std::vector<float> real_filters(const Program &program, const Operation &op);

}  // namespace xnorpp
