// Numbers that are moved and stay as they are: where each comes from, and the function that copies them.
#pragma once
#include <cstring>

#include "plain.h"

namespace xnorpp {

// Where the number of a channel and a pixel comes from: its channel and its pixel are each a sum of what the channel and what
// the pixel of the result contribute.
struct Origin {
    int32_t channel = 0, pixel = 0;
};
struct Sources {
    std::vector<Origin> channels, pixels;  // of the result
    bool plain = false;                    // channel k + c of one pixel for every k: a copy
};

inline PlainStep copying(Sources sources) {
    sources.plain = true;
    for (size_t k = 0; k < sources.channels.size(); k++)
        sources.plain &= sources.channels[k].pixel == 0 && sources.channels[k].channel == sources.channels[0].channel + (int32_t)k;
    const auto table = std::make_shared<const Sources>(std::move(sources));
    return {[table](const PlainCall &call, int first, int count, float *to) {
        const View &in = call.in[0];
        const Origin *channels = table->channels.data();
        const int wide = call.out.c;
        for (int i = 0; i < count; i++, to += call.out.stride) {
            const Origin &pixel = table->pixels[(size_t)(first + i)];
            const float *from = in.data + (int64_t)pixel.pixel * in.stride + pixel.channel;
            if (table->plain) std::memcpy(to, from + channels[0].channel, (size_t)wide * 4);
            else
                for (int k = 0; k < wide; k++) to[k] = from[(int64_t)channels[k].pixel * in.stride + channels[k].channel];
        }
    }};
}

inline Sources straight(const PlainSite &site) {  // each channel of its own, no pixels yet
    const Extent out = extent_of(site.output().shape);
    const size_t pixels = (size_t)out.h * (size_t)out.w;
    site.budget.take(((size_t)out.c + pixels) * sizeof(Origin));
    Sources sources;
    sources.channels.resize((size_t)out.c), sources.pixels.resize(pixels);
    for (size_t k = 0; k < sources.channels.size(); k++) sources.channels[k].channel = (int32_t)k;
    return sources;
}

// Pixels whose place along each axis is a function of the place in the result along the same axis.
template <class Place>
void each_axis(const PlainSite &site, Sources &sources, const Place &place) {
    const Shape &in = site.input().shape, &out = site.output().shape;
    for (size_t p = 0; p < sources.pixels.size(); p++) {
        int64_t rest = (int64_t)p, from = 0, step = 1;
        for (size_t axis = out.size(); axis-- > 1;) {
            from += place(axis, rest % out[axis]) * step;
            step *= in[axis], rest /= out[axis];
        }
        sources.pixels[p].pixel = (int32_t)from;
    }
}

}  // namespace xnorpp
