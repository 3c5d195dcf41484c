// The table of an instruction set, last in its file: the one list of what every instruction set has. A file gives its name,
// the traits of its one-bit dot product (`unit_bytes`, `unit_channels`, `weight_bytes`), the convolution made of it, whether
// that looks at Epilogue::limits, and how many blocks of filters it takes together. All else has the same name everywhere.

namespace {

constexpr Kernels table(const char *name, DotTraits bits, ConvFunction conv_bits, bool limits, int blocks) {
    return {
        name,
        bits,
        {4, 1, 4 * kBlock, 16, 0},
        {2, 1, 2 * kBlock, 16, 2},
        {2, 1, 2 * kBlock, ImagePairDot::kSlack, 2},
        limits,
        blocks,
        pack_bits,
        unpack_bits,
        pack_float,
        pack_image,
        pack_image_pair,
        pack_image_quad,
        pack_image_eight,
        pack_grouped,
        conv_bits,
        conv_float,
        conv_rows<ImageDot>,
        conv_rows<ImagePairDot>,
        conv_whole_of<WholeDot>,
        conv_grouped,
        pool_row,
        conv_pooled,
        pool_lines,
        global_mean,
        abs_mean,
        float_product,
        side_product,
        softmax,
        run_curve,
        moments,
        channel_moments,
        normalise,
        finish_pixels,
        transpose,
    };
}

}  // namespace
