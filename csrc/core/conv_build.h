// Prepares a convolution once, at load: geometry, border cases, and how its weight panels are written.
#pragma once
#include <functional>
#include <vector>

#include "memory.h"

namespace xnorpp {

// Whoever owns the bytes of filters and may do without them once they are packed. A tensor that `release` accepts is dropped part
// by part; `restore` takes its bytes from the panels, which it keeps alive, and writes them again.
class Releases {
  public:
    using Restore = std::function<void(uint8_t *to)>;
    virtual ~Releases() = default;
    virtual bool release(const uint8_t *stored, size_t bytes, Restore restore) = 0;
    virtual void drop(const uint8_t *from, size_t bytes) = 0;
};

struct ConvStore {
    Conv conv{};
    Source source = Source::Float;
    std::vector<Segment> segments;
    std::vector<uint16_t> row_case, col_case;
    Buffer base, scale, offset;  // an image's: scale and bias, shift; of floats: the bias
    // Weight panels are written where they stay, one convolution after the other: nothing is in memory twice, and what a
    // function of filters gives is freed before the next one's is made. `to` is zero, with a line of slack behind it.
    size_t weight_bytes = 0;
    using Done = std::function<void(size_t begin, size_t end)>;  // of the stored bytes: they have been packed
    std::function<void(const Conv &, char *to, const Done &)> pack;
    // The bytes that the panels were made of, and what makes them of the panels; null where they are read elsewhere too, or
    // where that is not known.
    const uint8_t *stored = nullptr;
    size_t stored_bytes = 0;
    std::function<void(const Conv &, const char *panels, uint8_t *to)> unpack;
    void take_weights(char *to, const Done &done = [](size_t, size_t) {}) {
        pack(conv, to, done);
        conv.weights = to, pack = nullptr;
    }
};

inline bool is_binary(Source source) { return source == Source::Bits || source == Source::Matrix; }

struct ConvSpec {
    int c, h, w, o, kh, kw, sh, sw, ph, pw, dh, dw, groups, pad_value, in_stride;
};

// Filters are read when `take_weights` is called. Bits: weight uint8 [o][kh][kw][ceil((c/groups)/8)].
ConvStore build_bit_conv(const Kernels &, Budget &, const ConvSpec &, const uint8_t *weight);
// Floats: weight [o][c/groups][kh][kw], bias [o] or null. `stored`: the same numbers where they are in memory already, or null.
ConvStore build_float_conv(const Kernels &, Budget &, const ConvSpec &, std::function<std::vector<float>()> weight, const float *stored,
                           const float *bias);
// Packs filters in parts of whole blocks, so that what has been packed can go before the rest is.
void pack_parts(const Conv &, PackFunction<float> pack, const float *weight, char *to, const ConvStore::Done &);
// The filters that `pack` made `panel_bytes` of panels of.
void unpack_floats(const Conv &, PackFunction<float> pack, const char *panels, size_t panel_bytes, uint8_t *to);
// Whole-numbered filters over the bytes of an image, as runtime/stem.py makes them: taps [o][c][kh][kw], each tap's
// part of the mean [o][kh][kw], what is left of it [o], and the factor [o].
struct ImageSpec {
    const int16_t *taps;
    const int32_t *mean, *rest;
    const float *scale;
};
// A uint8 image; groups 1, no dilation along a row; bias [o] or null. The filters are read at once.
ConvStore build_image_conv(const Kernels &, Budget &, const ConvSpec &, const ImageSpec &, const float *bias);
// Floats that are rounded to whole numbers (Conv::steps, limit): taps [o][c][kh][kw], factor [o], bias [o] or null; groups 1,
// no dilation along a row.
struct WholeSpec {
    std::function<std::vector<int16_t>()> taps;
    const float *scale;
    float steps, limit;
};
ConvStore build_whole_conv(const Kernels &, Budget &, const ConvSpec &, const WholeSpec &, const float *bias);
// Scratch bytes one thread needs for a convolution.
size_t scratch_of(const Kernels &, const ConvStore &);
const DotTraits &traits_of(const Kernels &, Source);
ConvFunction function_of(const Kernels &, Source);

}  // namespace xnorpp
