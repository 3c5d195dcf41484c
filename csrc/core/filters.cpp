// Filters from where they are stored into panels, and back.
#include <cstring>

#include "conv_build.h"

namespace xnorpp {

void pack_parts(const Conv &k, PackFunction<float> pack, const float *weight, char *to, const ConvStore::Done &done) {
    constexpr size_t kPart = (size_t)1 << 18;  // bytes, about
    const size_t filter = (size_t)k.fan * k.kh * k.kw;
    const int together = k.groups == 1 ? (int)(1 + kPart / (filter * sizeof(float) * kBlock)) * kBlock : k.o;
    for (int first = 0; first < k.o; first += together) {
        Conv part = k;
        if (k.groups == 1) {
            part.o = part.og = k.o - first < together ? k.o - first : together;
            part.blocks = part.blocks_per_group = (part.o + kBlock - 1) / kBlock;
        }
        pack(part, weight + (size_t)first * filter, to + (size_t)(first / kBlock) * k.panel_bytes);
        done((size_t)first * filter * sizeof(float), (size_t)(first + part.o) * filter * sizeof(float));
    }
}

// Whatever the order of the panels, the filters 1, 2, 3, ... show it: packing moves numbers and changes none.
void unpack_floats(const Conv &k, PackFunction<float> pack, const char *panels, size_t panel_bytes, uint8_t *to) {
    const size_t count = (size_t)k.o * k.fan * k.kh * k.kw;
    Buffer numbers(count * 4), places(panel_bytes);
    for (size_t i = 0; i < count; i++) numbers.as<uint32_t>()[i] = (uint32_t)i + 1;
    pack(k, numbers.as<float>(), places.as());
    for (size_t i = 0; i < panel_bytes / 4; i++)
        if (const uint32_t place = places.as<uint32_t>()[i]) std::memcpy(to + (size_t)(place - 1) * 4, panels + i * 4, 4);
}

}  // namespace xnorpp
