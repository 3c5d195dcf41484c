// Border cases. A convolution's outputs differ at the border in which taps lie inside the image; output rows
// with the same set of inside kernel rows share a case, columns likewise. Per case and filter one constant:
//
// bits, padding 0: a tap outside reads bits 0, so it counts popcount(w_tap) differing bits that should not count,
//     dot = n_inside - 2*(differing - sum_outside popcount(w_tap)) = base - 2*differing,
//     base = n_inside + 2*sum_outside popcount(w_tap).
//   Padding -1 or +1 is a real bit: base = n, one case.
// image: whole-numbered filters (runtime/stem.py), of which the part that stands for the mean depends on the case:
//     y = scale*(sum_inside q*x + 255*sum_inside m + rest) + bias.
#include "conv_build.h"

#include <cstring>
#include <map>
#include <stdexcept>
#include <string>

#include "../kernels/wide/chain.h"

namespace xnorpp {
namespace {

constexpr size_t kMostScratch = (size_t)1 << 31;
constexpr int kLongestSegment = 8184;  // a multiple of 3: a piece fits every kernel's counters

int windows(int size, int kernel, int stride, int padding, int dilation) {
    return (size + 2 * padding - dilation * (kernel - 1) - 1) / stride + 1;
}

// The taps inside the image are an interval of the kernel's rows (or columns).
struct Inside {
    int begin, end;
    bool operator<(const Inside &other) const { return begin != other.begin ? begin < other.begin : end < other.end; }
};

// The case of each output position, and the interval of each case. `one`: padding counts as inside.
std::vector<Inside> cases(int out, int size, int kernel, int stride, int padding, int dilation, bool one,
                          std::vector<uint16_t> &of) {
    std::map<Inside, int> seen;
    std::vector<Inside> list;
    of.assign((size_t)out, 0);
    for (int y = 0; y < out; y++) {
        const long first = (long)y * stride - padding;
        Inside inside{0, kernel};
        while (!one && inside.begin < kernel && first + (long)inside.begin * dilation < 0) inside.begin++;
        while (!one && inside.end > inside.begin && first + (long)(inside.end - 1) * dilation >= size) inside.end--;
        const auto found = seen.emplace(inside, (int)list.size());
        if (found.second) list.push_back(inside);
        if (list.size() > 65535) throw std::length_error("a convolution has too many border cases");
        of[(size_t)y] = (uint16_t)found.first->second;
    }
    return list;
}

// Sums over rectangles of kernel taps in constant time.
class TapSums {
  public:
    TapSums(int kh, int kw) : kh_(kh), kw_(kw), sums_((size_t)(kh + 1) * (kw + 1)) {}
    template <class Value>
    void fill(Value value) {
        for (int i = 0; i < kh_; i++)
            for (int j = 0; j < kw_; j++) at(i + 1, j + 1) = at(i, j + 1) + at(i + 1, j) - at(i, j) + value(i * kw_ + j);
    }
    double inside(const Inside &r, const Inside &c) {
        return at(r.end, c.end) - at(r.begin, c.end) - at(r.end, c.begin) + at(r.begin, c.begin);
    }
    double all() { return at(kh_, kw_); }

  private:
    double &at(int i, int j) { return sums_[(size_t)i * (kw_ + 1) + j]; }
    int kh_, kw_;
    std::vector<double> sums_;
};

void take_geometry(Conv &k, const ConvSpec &s) {
    k.c = s.c, k.h = s.h, k.w = s.w, k.o = s.o, k.kh = s.kh, k.kw = s.kw, k.sh = s.sh, k.sw = s.sw;
    k.ph = s.ph, k.pw = s.pw, k.dh = s.dh, k.dw = s.dw, k.groups = s.groups;
    k.pad_value = s.pad_value, k.in_stride = s.in_stride;
    k.oh = windows(s.h, s.kh, s.sh, s.ph, s.dh), k.ow = windows(s.w, s.kw, s.sw, s.pw, s.dw);
    k.fan = s.c / s.groups, k.og = s.o / s.groups;
    k.cols = s.w + 2 * s.pw;
}

void check_scratch(const ConvSpec &s, size_t bytes) {
    if (bytes > kMostScratch)
        throw std::length_error("a convolution over a " + std::to_string(s.h) + "x" + std::to_string(s.w) + " image of " +
                                std::to_string(s.c) + " channels needs more memory than the engine allows");
}

void plan_weights(ConvStore &store, Budget &budget, size_t bytes) {
    budget.take(bytes);
    store.weight_bytes = bytes;
}

ConvStore lay_out(const Kernels &kernels, Budget &budget, const ConvSpec &s, Source source, bool quad = false, bool eight = false,
                  bool tiles = false) {
    ConvStore store;
    store.source = source, store.conv.quad = quad, store.conv.eight = eight, store.conv.tiles = tiles;
    const DotTraits &t = traits_of(kernels, source);
    Conv &k = store.conv;
    take_geometry(k, s);
    k.words = (k.fan + 31) / 32;
    k.units = (k.fan + t.unit_channels - 1) / t.unit_channels;
    size_t row_units = (size_t)k.cols * s.groups * k.units;
    const bool chain = source == Source::Bits && t.chain && in_chain(k);
    if (chain) row_units = chain_row(k);
    if (source == Source::ImagePair) row_units = 2 * round_up(row_units + 24, 32);  // numbers, then differences
    const size_t least_rows = (size_t)(s.kh - 1) * s.dh + 1;
    check_scratch(s, row_units * least_rows * 4);
    check_scratch(s, ((size_t)k.cols + s.sw + 1) * s.groups * k.words * 4);
    k.row_units = (int)row_units;
    k.blocks_per_group = (k.og + kBlock - 1) / kBlock;
    k.channels_padded = s.groups * k.blocks_per_group * kBlock;
    k.blocks = s.groups == 1 ? k.blocks_per_group : 1;
    // As many rows at a time as keep the prepared rows in the first-level cache beside a weight panel.
    k.band = 1;
    const size_t prefixes = chain ? prefix_bytes(k) : 0;
    while (k.band < k.oh && ((size_t)k.band * s.sh + least_rows) * row_units * t.unit_bytes + (k.band + 1) * prefixes <= 24 * 1024) k.band++;
    const int bands = (k.oh + k.band - 1) / k.band;
    k.band = (k.oh + bands - 1) / bands;
    const int together = eight ? 4 : 2;  // rows that share most of what is prepared
    if (source == Source::ImagePair && k.band < together) k.band = k.oh < together ? k.oh : together;

    const bool whole_rows = s.groups == 1 && s.dw == 1;
    if (source == Source::ImagePair) {
        for (int i = 0; i < s.kh; i++) store.segments.push_back({i * s.dh * k.row_units, kPairUnits});
        store.segments.push_back({k.row_units / 2, 0});
        k.total_units = (long)s.kh * kPairUnits;
    }
    for (int i = 0; i < s.kh && source != Source::ImagePair; i++)
        for (int j = 0; j < (whole_rows ? 1 : s.kw); j++) {
            int length = whole_rows ? s.kw * k.units : k.units;
            if (t.multiple) length = (int)round_up((size_t)length, (size_t)t.multiple);
            const int offset = i * s.dh * k.row_units + j * s.dw * s.groups * k.units;
            for (int done = 0; done < length; done += kLongestSegment) {
                const int piece = length - done < kLongestSegment ? length - done : kLongestSegment;
                store.segments.push_back({offset + done, piece});
                k.total_units += piece;
            }
        }
    k.segments = store.segments.data();
    k.segment_count = (int)store.segments.size();
    k.panel_bytes = (size_t)k.total_units * t.weight_bytes;
    const size_t panels = (size_t)s.groups * k.blocks_per_group * k.panel_bytes;
    const size_t more = (quad ? quad_panel_bytes() : 0) + (eight ? eight_panel_bytes() : 0) + (tiles ? stem_panel_bytes() : 0);
    plan_weights(store, budget, panels + (size_t)k.blocks_per_group * more);
    return store;
}

// A binary convolution for a matrix unit: see planes.h.
ConvStore lay_out_matrix(Budget &budget, const ConvSpec &s, const Conv &geometry) {
    ConvStore store;
    store.source = Source::Matrix, store.conv = geometry;
    Conv &k = store.conv;
    k.units = (k.fan + kPlaneUnit - 1) / kPlaneUnit;
    const size_t row_units = (size_t)plane_columns(k) * k.units;
    const size_t least = row_units * ((size_t)(s.kh - 1) * s.dh + s.sh) * (size_t)s.sw * kPlaneUnit;
    check_scratch(s, least);
    k.row_units = (int)row_units;
    k.blocks_per_group = k.blocks = (k.og + kBlock - 1) / kBlock;
    k.channels_padded = k.blocks * kBlock;
    k.band = 1;
    while (k.band < k.oh && (plane_units(k) + (size_t)planes(k) * row_units) * kPlaneUnit <= kMostPlaneBytes) k.band++;
    const int bands = (k.oh + k.band - 1) / k.band;
    k.band = (k.oh + bands - 1) / bands;
    const bool whole_rows = s.sw == 1 && s.dw == 1;
    for (int i = 0; i < s.kh; i++)
        for (int j = 0; j < (whole_rows ? 1 : s.kw); j++) {
            store.segments.push_back({(int32_t)plane_offset(k, i * s.dh, j * s.dw), whole_rows ? s.kw * k.units : k.units});
            k.total_units += store.segments.back().length;
        }
    k.segments = store.segments.data();
    k.segment_count = (int)store.segments.size();
    k.panel_bytes = (size_t)k.total_units * kPlaneUnit * kBlock / 8 + kBlock * sizeof(int32_t);
    plan_weights(store, budget, (size_t)k.blocks * k.panel_bytes);
    return store;
}

ConvStore lay_out_bits(const Kernels &kernels, Budget &budget, const ConvSpec &s) {
    Conv geometry{};
    take_geometry(geometry, s);
    geometry.words = (geometry.fan + 31) / 32;
    if (kernels.matrix && s.groups == 1 && kernels.matrix->takes(geometry)) return lay_out_matrix(budget, s, geometry);
    return lay_out(kernels, budget, s, Source::Bits);
}

// Whether a real convolution takes the filters of several groups together: one group's would leave most of a block empty.
bool is_grouped(const ConvSpec &s) { return s.groups > 1 && s.o / s.groups <= kBlock / 2; }

ConvStore lay_out_grouped(Budget &budget, const ConvSpec &s) {
    ConvStore store;
    store.source = Source::Grouped;
    Conv &k = store.conv;
    take_geometry(k, s);
    k.blocks = (s.o + kBlock - 1) / kBlock, k.band = k.oh;
    k.channels_padded = k.blocks * kBlock;
    k.tile = (k.ow + 6) / 7 * 7 < (k.ow + 7) / 8 * 8 ? 7 : 8;
    // The last tile of a row reads what the pixels after the last one would.
    const size_t cols = (size_t)(round_up((size_t)k.ow, (size_t)k.tile) - 1) * s.sw + (size_t)(s.kw - 1) * s.dw + 1;
    const size_t row = (cols > (size_t)k.cols ? cols : (size_t)k.cols) * k.fan * kBlock;
    check_scratch(s, row * grouped_ring(k) * sizeof(float));
    k.row_units = (int)row;
    k.panel_bytes = (size_t)s.kh * s.kw * k.fan * kBlock * sizeof(float);
    plan_weights(store, budget, (size_t)k.blocks * k.panel_bytes);
    return store;
}

int padded_channel(const Conv &k, int o) {
    return (o / k.og * k.blocks_per_group + o % k.og / kBlock) * kBlock + o % k.og % kBlock;
}

}  // namespace

size_t scratch_of(const Kernels &kernels, const ConvStore &store) {
    if (store.source == Source::Grouped) return grouped_scratch(store.conv);
    if (store.source == Source::Matrix) return plane_scratch(store.conv);
    const bool bits = store.source == Source::Bits, chain = bits && kernels.bits.chain && in_chain(store.conv);
    return conv_scratch(store.conv, traits_of(kernels, store.source), bits) + (chain ? chain_bytes(store.conv) : 0);
}

const DotTraits &traits_of(const Kernels &kernels, Source source) {
    switch (source) {
        case Source::Bits:
        case Source::Matrix: return kernels.bits;
        case Source::Float:
        case Source::Grouped: return kernels.real;
        case Source::Bytes: return kernels.bytes;
        case Source::Whole:
        case Source::Image: return kernels.image;
        default: return kernels.image_pair;
    }
}

ConvFunction function_of(const Kernels &kernels, Source source) {
    switch (source) {
        case Source::Bits: return kernels.conv_bits;
        case Source::Matrix: return kernels.matrix->conv;
        case Source::Float: return kernels.conv_float;
        case Source::Grouped: return kernels.conv_grouped;
        case Source::Whole: return kernels.conv_whole;
        case Source::Bytes: return kernels.conv_bytes;
        case Source::Image: return kernels.conv_image;
        default: return kernels.conv_image_pair;
    }
}

ConvStore build_bit_conv(const Kernels &kernels, Budget &budget, const ConvSpec &s, const uint8_t *weight) {
    ConvStore store = lay_out_bits(kernels, budget, s);
    Conv &k = store.conv;
    const auto pack = store.source == Source::Matrix ? kernels.matrix->pack : kernels.pack_bits.function;
    store.pack = [pack, weight](const Conv &conv, char *to, const ConvStore::Done &done) {
        pack(conv, weight, to);
        done(0, (size_t)conv.o * conv.kh * conv.kw * (((size_t)conv.fan + 7) / 8));
    };
    store.unpack = store.source == Source::Matrix ? kernels.matrix->unpack : kernels.unpack_bits.function;
    const bool one = s.pad_value != 0;
    const auto rows = cases(k.oh, s.h, s.kh, s.sh, s.ph, s.dh, one, store.row_case);
    const auto cols = cases(k.ow, s.w, s.kw, s.sw, s.pw, s.dw, one, store.col_case);
    k.row_case = store.row_case.data(), k.col_case = store.col_case.data(), k.col_cases = (int)cols.size();
    const size_t constants = rows.size() * cols.size() * (size_t)k.channels_padded * 4;
    budget.take(constants);
    store.base = Buffer(constants);
    float *base = store.base.as<float>();
    k.base = base;
    const size_t taps = (size_t)s.kh * s.kw, bytes = (size_t)(k.fan + 7) / 8;
    TapSums ones(s.kh, s.kw);  // integers below 2**53, so exact
    for (int o = 0; o < s.o; o++) {
        ones.fill([&](int tap) {
            int count = 0;
            for (size_t b = 0; b < bytes; b++) count += __builtin_popcount(weight[((size_t)o * taps + tap) * bytes + b]);
            return count;
        });
        for (size_t r = 0; r < rows.size(); r++)
            for (size_t c = 0; c < cols.size(); c++) {
                const long inside = (long)(rows[r].end - rows[r].begin) * (cols[c].end - cols[c].begin) * k.fan;
                const long outside = (long)(ones.all() - ones.inside(rows[r], cols[c]));
                base[(r * cols.size() + c) * k.channels_padded + padded_channel(k, o)] = (float)(inside + 2 * outside);
            }
    }
    return store;
}

ConvStore build_float_conv(const Kernels &kernels, Budget &budget, const ConvSpec &s, std::function<std::vector<float>()> weight, const float *stored,
                           const float *bias) {
    const bool grouped = is_grouped(s);
    ConvStore store = grouped ? lay_out_grouped(budget, s) : lay_out(kernels, budget, s, Source::Float);
    Conv &k = store.conv;
    const auto pack = grouped ? kernels.pack_grouped : kernels.pack_float;
    if (stored) {
        store.pack = [pack, stored](const Conv &conv, char *to, const ConvStore::Done &done) { pack_parts(conv, pack, stored, to, done); };
        store.unpack = [pack, bytes = store.weight_bytes](const Conv &conv, const char *panels, uint8_t *to) { unpack_floats(conv, pack, panels, bytes, to); };
    } else {
        store.pack = [pack, weight = std::move(weight)](const Conv &conv, char *to, const ConvStore::Done &) { pack(conv, weight().data(), to); };
    }
    cases(k.oh, s.h, s.kh, s.sh, s.ph, s.dh, true, store.row_case);
    cases(k.ow, s.w, s.kw, s.sw, s.pw, s.dw, true, store.col_case);
    k.row_case = store.row_case.data(), k.col_case = store.col_case.data(), k.col_cases = 1;
    store.offset = Buffer((size_t)k.channels_padded * 4);
    k.bias = store.offset.as<float>();
    for (int o = 0; o < s.o; o++) store.offset.as<float>()[grouped ? o : padded_channel(k, o)] = bias ? bias[o] : 0.0f;
    return store;
}

namespace {

// The numbers that one filter's row of the kernel is multiplied with, in the order of image_pair.inl; `w` is
// [channel][kh][7]. False where one does not fit into 16 bits.
template <class Tap>
bool pair_products(const Tap *w, int kh, std::vector<int16_t> &out) {
    bool fit = true;
    for (int i = 0; i < kh; i++) {
        const auto column = [&](auto value) {
            for (int ch = 0; ch < 3; ch++) {
                const int product = (int)value(w + ((size_t)ch * kh + i) * 7);
                fit &= product == (int16_t)product;
                out.push_back((int16_t)product);
            }
        };
        using Taps = const Tap *;
        column([](Taps g) { return g[0] + g[2]; }), column([](Taps g) { return g[1] + g[3]; });
        column([](Taps g) { return g[4] + g[6]; }), column([](Taps g) { return (int)g[5]; });
        column([](Taps g) { return (int)g[0]; }), column([](Taps g) { return (int)g[1]; });
        column([](Taps g) { return (int)g[4]; }), column([](Taps g) { return (int)g[5]; });
        column([](Taps g) { return -g[2]; }), column([](Taps g) { return -g[3]; });
        column([](Taps g) { return -g[6]; }), out.push_back(0);
    }
    return fit;
}

// The same for several rows of outputs at once: of sums of the kernel's rows, `sign` of all whose bits `rows` has.
struct RowSum {
    int rows, sign;
};
constexpr RowSum kQuadRowSums[kQuadSums] = {{0x05, 1}, {0x0a, 1}, {0x50, 1}, {0x20, 1}, {0x01, 1}, {0x02, 1},
                                            {0x10, 1}, {0x20, 1}, {0x04, -1}, {0x08, -1}, {0x40, -1}};  // image_quad.inl
constexpr RowSum kEightRowSums[kEightSums] = {{0x55, 1}, {0x2a, 1}, {0x11, 1}, {0x22, 1}, {0x44, 1}, {0x08, 1},
                                              {0x05, 1}, {0x0a, 1}, {0x01, 1}, {0x02, 1}, {0x04, 1}, {0x08, 1},
                                              {0x50, 1}, {0x20, 1}, {0x10, 1}, {0x20, 1}, {0x40, 1}};  // image_eight.inl

template <size_t kSums>
bool row_products(const int16_t *w, const RowSum (&wanted)[kSums], std::vector<int16_t> &out) {
    int sums[3 * kSums * 7] = {};
    for (size_t ch = 0; ch < 3; ch++)
        for (size_t i = 0; i < kSums; i++)
            for (size_t row = 0; row < 7; row++)
                for (size_t j = 0; j < 7 && wanted[i].rows >> row & 1; j++) sums[(ch * kSums + i) * 7 + j] += wanted[i].sign * w[(ch * 7 + row) * 7 + j];
    return pair_products(sums, (int)kSums, out);
}

// Whether sums of two taps fit into 16 bits. The filters that our packer writes leave room for them; others need not.
bool has_room_for_pairs(const ConvSpec &s, const int16_t *taps) {
    for (size_t row = 0; row < (size_t)s.o * s.c * s.kh; row++)
        for (int j = 0; j + 2 < 7; j++) {
            const int sum = taps[row * 7 + j] + taps[row * 7 + j + 2];
            if (sum != (int16_t)sum) return false;
        }
    for (size_t i = 0; i < (size_t)s.o * s.c * s.kh * 7; i++)
        if (taps[i] == INT16_MIN) return false;  // which has no negative
    return true;
}

// Whether a matrix unit takes a stem: filters of two signed bytes each.
bool in_tiles(const Kernels &kernels, const ConvSpec &s, const int16_t *taps) {
    if (!kernels.matrix) return false;
    for (size_t i = 0; i < (size_t)s.o * s.c * 49; i++)
        if (taps[i] > 127 * 256 + 127) return false;
    return true;
}

}  // namespace

ConvStore build_image_conv(const Kernels &kernels, Budget &budget, const ConvSpec &s, const ImageSpec &p, const float *bias) {
    const bool pairs = s.c == 3 && s.kw == 7 && s.sw == 2 && has_room_for_pairs(s, p.taps);
    const size_t taps = (size_t)s.kh * s.kw, inputs = taps * s.c;
    const bool stem = pairs && s.kh == 7 && s.sh == 2 && s.dh == 1;  // of ImageNet networks
    const bool tiles = stem && in_tiles(kernels, s, p.taps);
    bool quad = stem && !tiles;
    std::vector<int16_t> quads, eights;
    for (int o = 0; o < s.o && quad; o++) quad = row_products(p.taps + (size_t)o * inputs, kQuadRowSums, quads);
    bool eight = quad;
    for (int o = 0; o < s.o && eight; o++) eight = row_products(p.taps + (size_t)o * inputs, kEightRowSums, eights);
    ConvStore store = lay_out(kernels, budget, s, pairs ? Source::ImagePair : Source::Image, quad, eight, tiles);
    Conv &k = store.conv;
    const auto rows = cases(k.oh, s.h, s.kh, s.sh, s.ph, s.dh, false, store.row_case);
    const auto cols = cases(k.ow, s.w, s.kw, s.sw, s.pw, s.dw, false, store.col_case);
    k.row_case = store.row_case.data(), k.col_case = store.col_case.data(), k.col_cases = (int)cols.size();
    store.scale = Buffer((size_t)k.channels_padded * 4 * 2);
    const size_t constants = rows.size() * cols.size() * (size_t)k.channels_padded * 4;
    budget.take(constants);
    store.offset = Buffer(constants);
    k.scale = store.scale.as<float>(), k.shift = store.offset.as<int32_t>();
    std::memcpy(store.scale.as<float>(), p.scale, (size_t)s.o * 4);
    if (bias) {
        std::memcpy(store.scale.as<float>() + k.channels_padded, bias, (size_t)s.o * 4);
        k.bias = k.scale + k.channels_padded;
    }
    std::vector<int16_t> products;
    TapSums mean(s.kh, s.kw);  // integers below 2**53, so exact
    for (int o = 0; o < s.o; o++) {
        if (pairs) pair_products(p.taps + (size_t)o * inputs, s.kh, products);
        mean.fill([&](int tap) { return p.mean[(size_t)o * taps + tap]; });
        for (size_t r = 0; r < rows.size(); r++)
            for (size_t c = 0; c < cols.size(); c++)
                store.offset.as<int32_t>()[(r * cols.size() + c) * k.channels_padded + o] =
                    (int32_t)(255.0 * mean.inside(rows[r], cols[c])) + p.rest[o];
    }
    const std::vector<int16_t> own(p.taps, p.taps + (size_t)s.o * inputs);
    store.pack = [&kernels, own, quads, eights, products](const Conv &conv, char *to, const ConvStore::Done &) {
        if (conv.quad) kernels.pack_image_quad(conv, quads.data(), to);
        if (conv.eight) kernels.pack_image_eight(conv, eights.data(), to);
        if (conv.tiles) kernels.matrix->pack_stem(conv, own.data(), to);
        if (products.empty()) kernels.pack_image(conv, own.data(), to);
        else kernels.pack_image_pair(conv, products.data(), to);
    };
    return store;
}

ConvStore build_whole_conv(const Kernels &kernels, Budget &budget, const ConvSpec &s, const WholeSpec &p, const float *bias) {
    const bool bytes = kernels.conv_bytes && p.limit <= 127;
    ConvStore store = lay_out(kernels, budget, s, bytes ? Source::Bytes : Source::Whole);
    Conv &k = store.conv;
    k.steps = p.steps, k.limit = p.limit;
    cases(k.oh, s.h, s.kh, s.sh, s.ph, s.dh, true, store.row_case);
    cases(k.ow, s.w, s.kw, s.sw, s.pw, s.dw, true, store.col_case);
    k.row_case = store.row_case.data(), k.col_case = store.col_case.data(), k.col_cases = 1;
    store.offset = Buffer((size_t)k.channels_padded * 4);
    store.scale = Buffer((size_t)k.channels_padded * 4 * 2);
    k.scale = store.scale.as<float>(), k.shift = store.offset.as<int32_t>();
    std::memcpy(store.scale.as<float>(), p.scale, (size_t)s.o * 4);
    if (bias) {
        std::memcpy(store.scale.as<float>() + k.channels_padded, bias, (size_t)s.o * 4);
        k.bias = k.scale + k.channels_padded;
    }
    const auto pack = bytes ? kernels.pack_bytes : kernels.pack_image.function;
    store.pack = [bytes, pack, taps = p.taps, offset = store.offset.as<int32_t>()](const Conv &conv, char *to, const ConvStore::Done &) {
        const std::vector<int16_t> own = taps();
        pack(conv, own.data(), to);
        const size_t inputs = own.size() / (size_t)conv.o;
        for (size_t o = 0; o < (size_t)conv.o && bytes; o++) {  // what numbers that are 128 higher add; like the sums modulo 2^32
            int64_t sum = 0;
            for (size_t i = 0; i < inputs; i++) sum += own[o * inputs + i];
            offset[o] = (int32_t)(uint32_t)(uint64_t)(-128 * sum);
        }
    };
    return store;
}

}  // namespace xnorpp
