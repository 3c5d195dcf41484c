// What an instruction set offers to the engine: one table of functions (`Kernels`), and the plain structs they
// take. Everything here is plain data, so that files compiled with different flags share no inline code.
//
// Layouts. A float value is NHWC with `stride` floats a pixel (channels rounded up to 16; lanes behind the last
// channel hold anything). A bit value has ceil(c/32) little-endian words a pixel, tail bits 0, bit 1 = +1.
// Channels of a result are worked on in blocks of 32.
#pragma once
#include <cstddef>
#include <cstdint>

namespace xnorpp {

constexpr int kBlock = 32;       // output channels a tile
constexpr int kMaxTile = 32;     // most pixels a tile
constexpr int kPairUnits = 34;   // products of a kernel row of `Source::ImagePair` (see stem/image_pair.inl)
constexpr int kQuadSums = 11;    // sums of a row for two rows of outputs (see stem/image_quad.inl)
constexpr int kEightSums = 17;   // of four rows of outputs (see stem/image_eight.inl)
constexpr int kStemUnits = 3;    // tiles of a stem's window (see wide/stem_tiles.inl)
constexpr size_t kLine = 64;     // a cache line: alignment of everything
constexpr int kExpCurve = 9, kLogCurve = 10;  // numbers of `Kernels::curve`, in curves.cuh

enum class Source : int { Bits, Matrix, Float, Grouped, Whole, Bytes, Image, ImagePair };  // Matrix: bits, by a matrix unit

// A run of consecutive units (nibbles, words, floats) in the prepared rows: `offset` from a pixel's first unit.
struct Segment {
    int32_t offset, length;
};

// A convolution (a linear layer is one with a 1x1 image). Prepared rows: the rows of the padded image that
// a band of output rows needs, as units an inner kernel consumes in order; `row_units` is their distance.
struct Conv {
    int c, h, w, o, oh, ow, kh, kw, sh, sw, ph, pw, dh, dw, groups;
    int pad_value;             // bits: -1, 0, +1
    int in_stride;             // words (bits), floats or bytes of one input pixel
    int fan, og;               // c/groups, o/groups
    int words;                 // bits: 32-bit words of one group of one pixel
    int units;                 // units of one group of one pixel
    int cols;                  // columns of the padded image
    int row_units;             // units from one prepared row to the next
    int band;                  // output rows prepared at a time
    int blocks_per_group;      // ceil(og/32)
    int blocks;                // parts of the channels that can be computed by themselves
    int tile;                  // grouped: pixels of a tile, 7 or 8
    bool quad;                 // Source::ImagePair: panels of stem/image_quad.inl lie after the others
    bool eight;                // the same of stem/image_eight.inl after those
    bool tiles;                // the same of wide/stem_tiles.inl, in place of both
    const Segment *segments;   // of group 0; group g adds g*units
    int segment_count;
    long total_units;          // sum of segment lengths
    const void *weights;       // [group][block] panels, each `panel_bytes`
    size_t panel_bytes;
    // Borders. The pixel (y, x) belongs to the case row_case[y]*col_cases + col_case[x].
    // Bits: dot = base[case][o] - 2*differing. Image: y = scale[o]*(sum + shift[case][o]) + bias[o], each step rounded.
    // Float: y = sum + bias[o]. Whole: as an image, of the numbers that `steps` and `limit` make of the input.
    const uint16_t *row_case, *col_case;
    int col_cases;
    int channels_padded;       // length of one row of base, shift; o rounded up to 32 (per group where grouped)
    const float *base;         // whole numbers
    const int32_t *shift;
    const float *scale, *bias; // an image's bias may be null
    float steps, limit;        // Source::Whole, Bytes: x becomes x*steps between -limit and limit, rounded
};

// Leaky: a PReLU whose slopes are all above 0 and at most 1, which is the greater one of v and slope*v.
enum class Act : int { None, Relu, Prelu, Hardtanh, Leaky };

enum class StageKind : int { Map, Full, Affine, Relu, Prelu, Hardtanh, AddValue, MulValue, MulPixel, Store, Sign, Curve, SubValue, DivValue };

// One micro-operation on the register; `a` holds its constants, `value` the memory it reads or writes.
struct Stage {
    StageKind kind;
    const float *a;          // map [pixel], full [pixel][stride], factor/slope/threshold [channel]
    const float *b;          // Affine: the summand [channel]
    const float *map, *full; // Sign: its own spatial factor, [pixel] or [pixel][stride], or null
    const uint32_t *flip;    // Sign: 0x80000000 where the comparison is turned round
    float lo, hi;
    char *value;
    int stride;              // of `value`: floats a pixel, or bytes a pixel for bits; 0 where all pixels share it
    int which;               // Curve: its number in curves.cuh, `lo` its parameter; AddValue, SubValue, DivValue: 1 where the
                             // channels of a pixel share one number
};

// The straight line behind a producer. `fused` says that it is
//   v*map, v*mult + add, act, + residual, v*mult2 + add2, act2, v*mult3 + add3, store, sign(v*sign_map)
// with any part absent, and is then done in registers in one go; otherwise `stages` run one by one on the tile.
struct Epilogue {
    const Stage *stages;
    int count;
    int channels;
    int full_stride;
    bool fused;
    const float *map, *mult, *add, *slope, *residual, *mult2, *add2, *slope2, *mult3, *add3, *sign_map, *threshold;
    const uint32_t *flip;
    Act act, act2;
    float lo, hi, lo2, hi2;
    float *out;
    uint8_t *bits;
    int residual_stride, out_stride, bits_stride;
    // Where the bits are all there is, and each depends on the count of differing bits alone (see engine/limits.cpp):
    // bit = (count < limits[case][c]) ^ turn. Null otherwise.
    const int16_t *limits;
    const uint32_t *turn;    // a word a block
    // A convolution over an image whose maxima are taken before they are floats (see core/pooled_sums.cpp): the lines of
    // maxima, of sums xor-ed with `toward`, which is -1 in channels where a greater sum is a smaller float.
    int32_t *sums;
    const int32_t *toward;
};

// What of a convolution's prepared rows lies ready in a thread's scratch: rows `first`.. of the image.
struct Prepared {
    int first = 0, rows = 0;
};

struct Pool {
    int c, h, w, oh, ow, kh, kw, sh, sw, ph, pw, dh, dw;
    bool max, include_pad, box;
};

// Products of matrices side by side, one in each channel: out[i][j] = sum over k of a[i][k]*b[k][j], in order. Channels are a
// multiple of 16; the steps are from one row, one column and one summand to the next.
struct SideProduct {
    int channels, rows, columns;
    int64_t inner, a_row, a_inner, b_inner, b_column, out_row, out_column;
};

// What a normalisation subtracts, and multiplies by: 1/sqrt(variance + eps).
struct Moments {
    float mean, factor;
};

// Fixed facts about an inner kernel that the engine needs to lay out memory.
struct DotTraits {
    int unit_bytes;      // of a prepared row
    int unit_channels;   // input channels a unit holds
    int weight_bytes;    // of a panel for each unit
    int slack_units;     // the kernel may write or read so many units behind a prepared row
    int multiple;        // segments are rounded up to a multiple of it (pairs of 16-bit numbers: 2); 0: they are not
    bool chain = false;  // bits: words of some convolutions are counted in a chain (wide/chain.h)
};

// An entry of the table that must be given: there is no way to make one from nothing.
template <class F>
struct Entry {
    F function;
    constexpr Entry(F given) : function(given) {}
    constexpr operator F() const { return function; }
};

// Output rows y0..y1 of the channel blocks b0..b1 (all blocks where groups > 1). Whoever comes back for other blocks of the
// same rows, or for the rows after them, gives `prepared`: what lies ready in `scratch` is not made again.
using ConvFunction = void (*)(const Conv &, const Epilogue &, const void *in, int y0, int y1, int b0, int b1, char *scratch,
                              Prepared *prepared);
template <class T>
using PackFunction = void (*)(const Conv &, const T *weight, void *panels);
using UnpackFunction = void (*)(const Conv &, const void *panels, uint8_t *weight);  // writes the bits that were packed

// One-bit convolutions by a matrix unit (wide/matrix.inl), where a set of instructions has one: their prepared rows are planes
// of bytes (wide/planes.h).
struct Matrix {
    bool (*takes)(const Conv &);  // whether a convolution is faster that way; its geometry and words are known
    PackFunction<uint8_t> pack;
    UnpackFunction unpack;
    ConvFunction conv;
    PackFunction<int16_t> pack_stem;  // of a stem whose maxima `conv_pooled` takes with it (wide/stem_tiles.inl)
};

// What every instruction set has. Its one list of entries is in table.inl, which each file of kernels includes last: an entry
// that is not listed there, or that a file does not define, does not compile.
struct Kernels {
    const char *name;
    DotTraits bits, real, image, image_pair;
    bool limits;  // whether conv_bits looks at Epilogue::limits
    int blocks;   // blocks of filters that conv_bits is fastest with
    Entry<PackFunction<uint8_t>> pack_bits;
    Entry<UnpackFunction> unpack_bits;
    Entry<PackFunction<float>> pack_float;
    Entry<PackFunction<int16_t>> pack_image, pack_image_pair, pack_image_quad, pack_image_eight;
    Entry<PackFunction<float>> pack_grouped;
    Entry<ConvFunction> conv_bits, conv_float, conv_image, conv_image_pair;
    Entry<ConvFunction> conv_whole;    // floats rounded to 16 bits, panels of pack_image
    Entry<ConvFunction> conv_grouped;  // real, with many groups of few filters (real/grouped.inl)
    // One row of a pool into `row` (stride as the input's). `in` points at row 0; `ring` > 0: rows live in a ring of so many.
    Entry<void (*)(const Pool &, const float *in, int stride, int ring, int y, float *row)> pool_row;
    // A stem of Source::ImagePair together with its max pool (stem/pooled.inl): rows y0..y1 into lines of maxima, and row y of
    // the pool from a ring of lines.
    Entry<void (*)(const Conv &, const Epilogue &, const void *in, int y0, int y1, char *scratch, Prepared *prepared)> conv_pooled;
    Entry<void (*)(const Pool &, const Conv &, const Epilogue &, const int32_t *lines, int stride, int ring, int y)> pool_lines;
    Entry<void (*)(const float *in, int pixels, int stride, int channels, float *out)> global_mean;
    Entry<void (*)(const float *in, int pixels, int stride, int channels, float *out, int out_stride)> abs_mean;
    // out[i][j] = sum over k of a[i][k]*b[k][j], i < rows, k < inner, j < columns; steps are from one row to the next, and
    // columns, steps of b and of out are multiples of 16.
    Entry<void (*)(const float *a, int a_step, const float *b, int b_step, int rows, int inner, int columns, float *out, int out_step)> product;
    Entry<void (*)(const SideProduct &, const float *a, const float *b, float *out)> side_product;
    // exp(x - most)/sum in each of `lanes` columns, a multiple of 16, of `size` rows that lie `far` apart.
    Entry<void (*)(float *rows, int64_t far, int64_t size, int lanes)> softmax;
    Entry<void (*)(int which, float parameter, float *values, int n)> curve;  // n a multiple of 16
    // Normalisation (norm.inl): the moments of rows of n numbers that lie `stride` apart, those of each of their channels, and
    // each group of n numbers of each row by its own moments.
    Entry<Moments (*)(const float *x, size_t stride, int rows, int n, bool centre, double eps)> moments;
    Entry<void (*)(const float *x, size_t stride, int rows, int channels, bool centre, double eps, float *mean, float *factor)> channel_moments;
    Entry<void (*)(const float *x, size_t stride, int rows, int groups, int n, bool centre, double eps, float *to, size_t to_stride)> normalise;
    // The epilogue over pixels first..first+n whose registers start as src[i*stride + channel].
    Entry<void (*)(const Epilogue &, const float *src, int stride, int first, int n)> finish;
    // to[j*to_stride + i] = from[i*from_stride + j] for i < rows, j < columns.
    Entry<void (*)(const float *from, size_t from_stride, int rows, int columns, float *to, size_t to_stride)> transpose;
    // Floats rounded to 8 bits, where that is faster than `conv_whole` (stem/bytes.inl); null elsewhere.
    DotTraits bytes{};
    PackFunction<int16_t> pack_bytes = nullptr;
    ConvFunction conv_bytes = nullptr;
    const Matrix *matrix = nullptr;
};

// Scratch bytes one thread needs for a convolution; the carving itself is in conv.inl.
static inline size_t round_up(size_t n, size_t to) { return (n + to - 1) / to * to; }

// A panel is read once a band but by many tiles, so its first reading, from a far cache, is all that costs: while a
// panel is used, each of its tiles asks for its share of the next one. Null: there is no next one.
struct Ahead {
    const char *at = nullptr;
    int share = 1;  // one part in `share` of what the tile itself reads
};

static inline size_t band_bytes(const Conv &k, const DotTraits &t) {
    size_t rows = (size_t)(k.band - 1) * k.sh + (size_t)(k.kh - 1) * k.dh + 1;
    return round_up((rows * k.row_units + t.slack_units) * t.unit_bytes, kLine);
}
static inline size_t padded_row_bytes(const Conv &k) {
    return round_up(((size_t)k.cols + k.sw + 1) * k.groups * k.words * 4 + 64, kLine);
}
static inline size_t tile_bytes(const Conv &k) {
    size_t result = (size_t)kMaxTile * kBlock * 4 * 3;
    return round_up(result + (k.groups > 1 ? (size_t)kMaxTile * round_up(k.o, kBlock) * 4 : 0), kLine);
}
static inline size_t quad_panel_bytes() { return (size_t)kQuadSums * kPairUnits * 2 * kBlock; }
static inline size_t eight_panel_bytes() { return (size_t)kEightSums * kPairUnits * 2 * kBlock; }
static inline size_t stem_panel_bytes() { return (size_t)kStemUnits * 2 * 64 * kBlock; }
// A row of a stem by a matrix unit as tiles of sixteen outputs, and the bytes of three rows of its image, column by column.
static inline int stem_tiles_across(const Conv &k) { return (k.ow + 15) / 16; }
static inline size_t stem_unit_bytes(const Conv &k) { return round_up((size_t)stem_tiles_across(k) * 16 * 18 + 64 + 63, kLine); }
// Rows made of prepared ones, for several rows of outputs at once; for a matrix unit all that it needs.
static inline size_t made_row_bytes(const Conv &k) {
    if (k.tiles) return 8 * 1024 + (size_t)k.channels_padded * 4 + 2 * kStemUnits * stem_unit_bytes(k) + kLine;
    const size_t rows = k.eight ? kEightSums - 2 : k.quad ? 7 : 0;
    return rows ? round_up(rows * k.row_units * 2, kLine) + 6 * kLine : 0;
}
static inline size_t conv_scratch(const Conv &k, const DotTraits &t, bool bits) {
    const size_t below = bits && k.ow % 2 ? band_bytes(k, t) : 0;  // see conv_rows
    return band_bytes(k, t) + (bits ? padded_row_bytes(k) : 0) + below + tile_bytes(k) + made_row_bytes(k) + 4 * kLine;
}

// Rows of the image that a grouped convolution holds at a time, and their floats.
static inline int grouped_ring(const Conv &k) { return (k.kh - 1) * k.dh + 1; }
static inline size_t grouped_floats(const Conv &k) { return (size_t)grouped_ring(k) * k.row_units; }
static inline size_t grouped_scratch(const Conv &k) {
    return tile_bytes(k) + grouped_floats(k) * sizeof(float) + (size_t)k.kh * sizeof(float *) + 4 * kLine;
}

const Kernels *generic_kernels();  // which all others are compared with

}  // namespace xnorpp
