// One-bit convolutions whose words are counted in a chain (chain.inl): what of them has to be known to lay out memory.
#pragma once
#include "planes.h"

namespace xnorpp {

constexpr size_t kMostPrefixBytes = 128 * 1024;  // of an output row: more would not stay in the second-level cache
constexpr size_t kMostPairs = 1023;              // carries are added as 16-bit numbers in the end

static inline size_t chain_pairs(const Conv &k) { return (size_t)k.kh * k.kw * k.words / 2; }
// The parities of an output row: [pair of words][pixel]. Stores that cross no line are worth some pixels more.
static inline size_t prefix_pitch(const Conv &k) { return k.ow <= 8 ? 8 : round_up((size_t)k.ow, 16); }
static inline size_t prefix_bytes(const Conv &k) { return chain_pairs(k) * prefix_pitch(k) * sizeof(uint32_t); }
// Whether a convolution is computed that way. A pixel alone would leave the loads of filters as the slowest part.
static inline bool in_chain(const Conv &k) {
    return k.groups == 1 && k.ow > 1 && chain_pairs(k) <= kMostPairs && prefix_bytes(k) <= kMostPrefixBytes;
}
// A prepared row: [remainder of the column by the stride][word of the pixel][column/stride].
static inline size_t chain_columns(const Conv &k) {
    const size_t columns = (size_t)plane_columns(k);
    return columns <= 12 ? columns : round_up(columns, 16);
}
static inline size_t chain_row(const Conv &k) { return (size_t)planes_across(k) * k.words * chain_columns(k); }
// Parities of a band, and for each pair where its first word lies.
static inline size_t chain_bytes(const Conv &k) {
    return round_up(k.band * prefix_bytes(k) + kLine, kLine) + round_up(chain_pairs(k) * 2 * sizeof(int32_t), kLine);
}

}  // namespace xnorpp
