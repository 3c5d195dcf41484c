// Numbers that are joined, chosen, repeated, enlarged or pooled by windows of different sizes.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "plain.h"

namespace xnorpp {
namespace {

// Where the number of a channel and a pixel comes from: its channel and its pixel are each a sum of what the channel and what
// the pixel of the result contribute.
struct Origin {
    int32_t channel = 0, pixel = 0;
};
struct Sources {
    std::vector<Origin> channels, pixels;  // of the result
    bool plain = false;                    // channel k + c of one pixel for every k: a copy
};

PlainStep copying(Sources sources) {
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

Sources straight(const PlainSite &site) {  // each channel of its own, no pixels yet
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

PlainStep slice(const PlainSite &site) {
    const std::vector<int64_t> start = site.integers("start"), step = site.integers("step");
    Sources sources = straight(site);
    each_axis(site, sources, [&](size_t axis, int64_t at) { return start[axis] + at * step[axis]; });
    for (size_t k = 0; k < sources.channels.size(); k++) sources.channels[k].channel = (int32_t)(start[0] + (int64_t)k * step[0]);
    return copying(std::move(sources));
}

PlainStep flip(const PlainSite &site) {
    const size_t chosen = (size_t)site.op.integer("axis");
    const Shape &shape = site.output().shape;
    Sources sources = straight(site);
    each_axis(site, sources, [&](size_t axis, int64_t at) { return axis == chosen ? shape[axis] - 1 - at : at; });
    if (chosen == 0)
        for (size_t k = 0; k < sources.channels.size(); k++) sources.channels[k].channel = (int32_t)(shape[0] - 1 - (int64_t)k);
    return copying(std::move(sources));
}

PlainStep expand(const PlainSite &site) {
    const Shape &in = site.input().shape;
    Sources sources = straight(site);
    each_axis(site, sources, [&](size_t axis, int64_t at) { return in[axis] == 1 ? 0 : at; });
    if (in[0] == 1)
        for (Origin &channel : sources.channels) channel.channel = 0;
    return copying(std::move(sources));
}

// Channel c*r*r + i*r + j of a pixel is pixel (i, j) of the r by r that it becomes.
PlainStep pixel_shuffle(const PlainSite &site) {
    const int r = site.op.integer("factor");
    const Shape &in = site.input().shape, &out = site.output().shape;
    Sources sources = straight(site);
    for (size_t k = 0; k < sources.channels.size(); k++) sources.channels[k].channel = (int32_t)k * r * r;
    for (size_t p = 0; p < sources.pixels.size(); p++) {
        const int y = (int)(p / (size_t)out[2]), x = (int)(p % (size_t)out[2]);
        sources.pixels[p] = {y % r * r + x % r, y / r * (int)in[2] + x / r};
    }
    return copying(std::move(sources));
}

PlainStep pixel_unshuffle(const PlainSite &site) {
    const int r = site.op.integer("factor");
    const Shape &in = site.input().shape, &out = site.output().shape;
    Sources sources = straight(site);
    for (size_t k = 0; k < sources.channels.size(); k++) {
        const int part = (int)k % (r * r);
        sources.channels[k] = {(int)k / (r * r), part / r * (int)in[2] + part % r};
    }
    for (size_t p = 0; p < sources.pixels.size(); p++) {
        const int y = (int)(p / (size_t)out[2]), x = (int)(p % (size_t)out[2]);
        sources.pixels[p] = {0, y * r * (int)in[2] + x * r};
    }
    return copying(std::move(sources));
}

// Channels (groups, c/groups) become (c/groups, groups).
PlainStep channel_shuffle(const PlainSite &site) {
    const int groups = site.op.integer("groups"), each = (int)site.input().channels() / groups;
    Sources sources = straight(site);
    each_axis(site, sources, [](size_t, int64_t at) { return at; });
    for (size_t k = 0; k < sources.channels.size(); k++) sources.channels[k].channel = (int)k % groups * each + (int)k / groups;
    return copying(std::move(sources));
}

PlainStep edge_pad2d(const PlainSite &site) {
    const std::vector<int64_t> edges = site.integers("padding");
    const std::string mode = site.op.attrs.find("mode")->text();
    const Shape &in = site.input().shape;
    Sources sources = straight(site);
    each_axis(site, sources, [&](size_t axis, int64_t at) {
        const int64_t size = in[axis], place = at - edges[2 * (axis - 1)];
        if (mode == "replicate") return std::max<int64_t>(0, std::min(place, size - 1));
        if (mode == "circular") return (place + size) % size;
        return place < 0 ? -place : place < size ? place : 2 * (size - 1) - place;
    });
    return copying(std::move(sources));
}

// The step from one pixel of the result to the next, in pixels of the input: as torch has it, in float32.
float ratio_of(const PlainSite &site, size_t axis, bool aligned) {
    const int64_t in = site.input().shape[1 + axis], out = site.output().shape[1 + axis];
    if (aligned) return out > 1 ? (float)(in - 1) / (float)(out - 1) : 0.0f;
    const Json &scale = *site.op.attrs.find("scale");
    return scale.is(Json::Type::Null) ? (float)in / (float)out : (float)(1.0 / scale.items()[axis].number());
}

struct Tap {
    int32_t first, second;  // rows or columns
    float low, high;        // their weights
};

std::vector<Tap> taps_of(const PlainSite &site, size_t axis, bool aligned) {
    const int64_t in = site.input().shape[1 + axis], out = site.output().shape[1 + axis];
    const float ratio = ratio_of(site, axis, aligned);
    site.budget.take((size_t)out * sizeof(Tap));
    std::vector<Tap> taps((size_t)out);
    for (size_t i = 0; i < taps.size(); i++) {
        float place = aligned ? ratio * (float)i : ratio * ((float)i + 0.5f) - 0.5f;
        place = place < 0 ? 0 : place;
        const int64_t first = std::min((int64_t)place, in - 1);
        const float high = std::min(std::max(place - (float)first, 0.0f), 1.0f);
        taps[i] = {(int32_t)first, (int32_t)std::min(first + 1, in - 1), 1.0f - high, high};
    }
    return taps;
}

struct CubicTap {
    int32_t at[4];  // rows or columns
    float weight[4];
};

// The weights of the four numbers around a place that is `t` after the second.
void cubic_weights(double t, float *weight) {
    constexpr double a = -0.75;
    const auto near = [](double d) { return ((a + 2) * d - (a + 3)) * d * d + 1; };
    const auto far = [](double d) { return ((a * d - 5 * a) * d + 8 * a) * d - 4 * a; };
    weight[0] = (float)far(t + 1), weight[1] = (float)near(t), weight[2] = (float)near(1 - t), weight[3] = (float)far(2 - t);
}

std::vector<CubicTap> cubic_taps_of(const PlainSite &site, size_t axis, bool aligned) {
    const int64_t in = site.input().shape[1 + axis], out = site.output().shape[1 + axis];
    const float ratio = ratio_of(site, axis, aligned);
    site.budget.take((size_t)out * sizeof(CubicTap));
    std::vector<CubicTap> taps((size_t)out);
    for (size_t i = 0; i < taps.size(); i++) {
        const float place = aligned ? ratio * (float)i : ratio * ((float)i + 0.5f) - 0.5f, whole = std::floor(place);
        const int64_t first = (int64_t)whole - 1;
        for (int64_t k = 0; k < 4; k++) taps[i].at[k] = (int32_t)std::min(std::max<int64_t>(first + k, 0), in - 1);
        cubic_weights((double)(place - whole), taps[i].weight);
    }
    return taps;
}

PlainStep bicubic(const PlainSite &site, bool aligned) {
    const auto rows = cubic_taps_of(site, 0, aligned), columns = cubic_taps_of(site, 1, aligned);
    return {[rows, columns](const PlainCall &call, int first, int count, float *to) {
        const View &in = call.in[0];
        const int wide = call.out.c, width = call.out.w;
        for (int i = 0; i < count; i++, to += call.out.stride) {
            const CubicTap &y = rows[(size_t)((first + i) / width)], &x = columns[(size_t)((first + i) % width)];
            const float *from[4][4];
            for (int r = 0; r < 4; r++)
                for (int c = 0; c < 4; c++) from[r][c] = in.data + ((int64_t)y.at[r] * in.w + x.at[c]) * in.stride;
            for (int k = 0; k < wide; k++) {
                float sum = 0;
                for (int r = 0; r < 4; r++) {
                    float row = x.weight[0] * from[r][0][k];
                    for (int c = 1; c < 4; c++) row = row + x.weight[c] * from[r][c][k];
                    sum = r == 0 ? y.weight[0] * row : sum + y.weight[r] * row;
                }
                to[k] = sum;
            }
        }
    }};
}

PlainStep upsample2d(const PlainSite &site) {
    const std::string mode = site.op.attrs.find("mode")->text();
    const bool aligned = site.op.attrs.find("align_corners")->boolean;
    if (mode == "bicubic") return bicubic(site, aligned);
    if (mode != "bilinear") {
        const float half = mode == "nearest" ? 0.0f : 0.5f;
        const float ratios[] = {ratio_of(site, 0, false), ratio_of(site, 1, false)};
        const Shape &in = site.input().shape;
        Sources sources = straight(site);
        each_axis(site, sources, [&](size_t axis, int64_t at) {
            return std::min((int64_t)std::floor(((float)at + half) * ratios[axis - 1]), in[axis] - 1);
        });
        return copying(std::move(sources));
    }
    const auto rows = taps_of(site, 0, aligned), columns = taps_of(site, 1, aligned);
    return {[rows, columns](const PlainCall &call, int first, int count, float *to) {
        const View &in = call.in[0];
        const int wide = call.out.c, width = call.out.w;
        for (int i = 0; i < count; i++, to += call.out.stride) {
            const Tap &y = rows[(size_t)((first + i) / width)], &x = columns[(size_t)((first + i) % width)];
            const float *top = in.data + (int64_t)y.first * in.w * in.stride, *below = in.data + (int64_t)y.second * in.w * in.stride;
            const float *a = top + (int64_t)x.first * in.stride, *b = top + (int64_t)x.second * in.stride;
            const float *c = below + (int64_t)x.first * in.stride, *d = below + (int64_t)x.second * in.stride;
            for (int k = 0; k < wide; k++) {
                const float above = x.low * a[k] + x.high * b[k], under = x.low * c[k] + x.high * d[k];
                to[k] = y.low * above + y.high * under;
            }
        }
    }};
}

void take_maxima(float *most, const float *from, int count) {
    for (int k = 0; k < count; k++) most[k] = from[k] <= most[k] ? most[k] : most[k] != most[k] ? most[k] : from[k];  // a NaN wins and stays
}

// Window i of `out` over `in` numbers: from floor(i*in/out) to ceil((i+1)*in/out).
template <bool kMax>
PlainStep adaptive(const PlainSite &) {
    return {[](const PlainCall &call, int first, int count, float *to) {
        const View &in = call.in[0], &out = call.out;
        for (int i = 0; i < count; i++, to += out.stride) {
            const int64_t y = (first + i) / out.w, x = (first + i) % out.w;
            const int64_t top = y * in.h / out.h, bottom = ((y + 1) * in.h + out.h - 1) / out.h;
            const int64_t left = x * in.w / out.w, right = ((x + 1) * in.w + out.w - 1) / out.w;
            std::fill(to, to + out.c, kMax ? -INFINITY : 0.0f);
            for (int64_t r = top; r < bottom; r++)
                for (int64_t c = left; c < right; c++) {
                    const float *from = in.data + (r * in.w + c) * in.stride;
                    if (kMax) take_maxima(to, from, out.c);
                    else
                        for (int k = 0; k < out.c; k++) to[k] += from[k];
                }
            const float size = (float)((bottom - top) * (right - left));
            if (!kMax)
                for (int k = 0; k < out.c; k++) to[k] /= size;
        }
    }};
}

PlainStep dilated_max_pool2d(const PlainSite &site) {
    std::vector<int> n;
    for (const char *name : {"kernel", "stride", "padding", "dilation"})
        for (size_t i = 0; i < 2; i++) n.push_back(site.op.integer(name, i));
    return {[n](const PlainCall &call, int first, int count, float *to) {
        const View &in = call.in[0], &out = call.out;
        for (int i = 0; i < count; i++, to += out.stride) {
            const int64_t top = (int64_t)((first + i) / out.w) * n[2] - n[4], left = (int64_t)((first + i) % out.w) * n[3] - n[5];
            std::fill(to, to + out.c, -INFINITY);
            for (int64_t r = top; r < top + (int64_t)n[0] * n[6]; r += n[6])
                for (int64_t c = left; c < left + (int64_t)n[1] * n[7]; c += n[7])
                    if (r >= 0 && r < in.h && c >= 0 && c < in.w) take_maxima(to, in.data + (r * in.w + c) * in.stride, out.c);
        }
    }};
}

PlainStep concat(const PlainSite &site) {
    const size_t axis = (size_t)site.op.integer("axis"), parts = site.op.inputs.size();
    if (axis == 0) return {[parts](const PlainCall &call, int first, int count, float *to) {
        for (int i = 0; i < count; i++, to += call.out.stride) {
            float *at = to;
            for (size_t part = 0; part < parts; part++) {
                const View &in = call.in[part];
                std::memcpy(at, in.data + (int64_t)(first + i) * in.stride, (size_t)in.c * 4);
                at += in.c;
            }
        }
    }};
    const Shape &out = site.output().shape;
    int64_t inner = 1;
    for (size_t i = axis + 1; i < out.size(); i++) inner *= out[i];
    std::vector<int64_t> sizes;
    for (size_t part = 0; part < parts; part++) sizes.push_back(site.input(part).shape[axis]);
    const int64_t whole = out[axis];
    return {[sizes, inner, whole](const PlainCall &call, int first, int count, float *to) {
        for (int i = 0; i < count; i++, to += call.out.stride) {
            const int64_t p = first + i, outer = p / (inner * whole);
            int64_t at = p / inner % whole;
            size_t part = 0;
            while (at >= sizes[part]) at -= sizes[part++];
            const View &in = call.in[part];
            std::memcpy(to, in.data + ((outer * sizes[part] + at) * inner + p % inner) * in.stride, (size_t)in.c * 4);
        }
    }};
}

PlainStep constant(const PlainSite &site) {
    const auto values = std::make_shared<const std::vector<float>>(site.floats("value"));
    return {[values](const PlainCall &call, int first, int count, float *to) {
        const size_t pixels = (size_t)call.out.pixels();
        for (int i = 0; i < count; i++, to += call.out.stride)
            for (int k = 0; k < call.out.c; k++) to[k] = (*values)[(size_t)k * pixels + (size_t)(first + i)];
    }};
}

}  // namespace

void add_plain_moves(PlainRows &rows) {
    const PlainRow all[] = {
        {"concat", concat}, {"slice", slice}, {"flip", flip}, {"expand", expand}, {"pixel_shuffle", pixel_shuffle},
        {"pixel_unshuffle", pixel_unshuffle}, {"channel_shuffle", channel_shuffle}, {"edge_pad2d", edge_pad2d},
        {"upsample2d", upsample2d}, {"adaptive_avg_pool2d", adaptive<false>}, {"adaptive_max_pool2d", adaptive<true>},
        {"dilated_max_pool2d", dilated_max_pool2d},
        {"constant", constant},
    };
    rows.insert(rows.end(), std::begin(all), std::end(all));
}

}  // namespace xnorpp
