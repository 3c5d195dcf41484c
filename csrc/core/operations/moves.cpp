// Numbers that are joined, chosen, repeated, enlarged or pooled by windows of different sizes.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "../plain/sources.h"
#include "../plain/taps.h"
#include "rows.h"

namespace xnorpp {
namespace {

Value concat(const Site &site) {
    const size_t axis = site.axis("axis");
    Shape out = site.inputs[0]->shape;
    for (size_t i = 1; i < site.inputs.size(); i++) {
        Shape other = site.inputs[i]->shape;
        const bool same_rank = other.size() == out.size();
        const int64_t more = same_rank ? other[axis] : 0;
        if (same_rank) other[axis] = out[axis];
        if (other != out)
            site.fail("input " + std::to_string(i) + " has shape " + text_of(site.inputs[i]->shape) + "; that of input 0, " +
                      text_of(site.inputs[0]->shape) + ", is needed except along axis " + std::to_string(axis));
        out[axis] += more;
        if (out[axis] > kMostExtent) site.fail("its output is out of range");
    }
    return {Kind::F32, out};
}

// Along each axis the numbers start, start + step, ... before `stop`, which counts from the end where it is below 0.
Value slice(const Site &site) {
    Shape out = site.inputs[0]->shape;
    const std::vector<int64_t> start = site.integers("start", 0, kMostExtent), step = site.integers("step", 1, kMostExtent);
    const Json &given = site.attr("stop");
    bool right = given.is(Json::Type::List) && given.items().size() == out.size() && start.size() == out.size() && step.size() == out.size();
    for (size_t i = 0; right && i < out.size(); i++) {
        const Json &item = given.items()[i];
        int64_t stop = out[i];
        if (item.is(Json::Type::Integer) && std::abs(item.integer) <= kMostExtent) stop = item.integer < 0 ? item.integer + out[i] : item.integer;
        else right = item.is(Json::Type::Null);
        right = right && stop <= out[i] && start[i] < stop;
        if (right) out[i] = (stop - start[i] + step[i] - 1) / step[i];
    }
    if (!right)
        site.fail("`start` (=" + site.attr("start").brief() + ") and `stop` (=" + given.brief() + ") must choose a part of " +
                  text_of(site.inputs[0]->shape) + ", one number for each axis; a stop may be null");
    return {Kind::F32, out};
}

Value flip(const Site &site) {
    site.axis("axis");
    return {Kind::F32, site.inputs[0]->shape};
}

Value expand(const Site &site) {
    const Shape &in = site.inputs[0]->shape, shape = site.integers("shape", 1, kMostExtent);
    bool right = shape.size() == in.size();
    for (size_t i = 0; right && i < in.size(); i++) right = in[i] == shape[i] || in[i] == 1;
    if (!right) site.fail("`shape` (=" + site.attr("shape").brief() + ") must be " + text_of(in) + ", with any size where that is 1");
    return {Kind::F32, shape};
}

Value pixel_shuffle(const Site &site) {
    const Shape &in = site.image();
    const int64_t r = site.integer("factor", 1, kMostWindow);
    if (in[0] % (r * r)) site.fail("the square of `factor` (=" + std::to_string(r) + ") must divide the " + std::to_string(in[0]) + " channels");
    return {Kind::F32, {in[0] / (r * r), in[1] * r, in[2] * r}};
}

Value pixel_unshuffle(const Site &site) {
    const Shape &in = site.image();
    const int64_t r = site.integer("factor", 1, kMostWindow);
    if (in[1] % r || in[2] % r) site.fail("`factor` (=" + std::to_string(r) + ") must divide the rows and columns of " + text_of(in));
    return {Kind::F32, {in[0] * r * r, in[1] / r, in[2] / r}};
}

Value channel_shuffle(const Site &site) {
    const Shape &in = site.inputs[0]->shape;
    const int64_t groups = site.integer("groups", 1, kMostExtent);
    if (in[0] % groups) site.fail("`groups` (=" + std::to_string(groups) + ") must divide the " + std::to_string(in[0]) + " channels");
    return {Kind::F32, in};
}

Value edge_pad2d(const Site &site) {
    const Shape &in = site.image();
    const std::string mode = mode_of(site, {"reflect", "replicate", "circular"});
    const std::vector<int64_t> edges = site.integers("padding", 0, kMostExtent);
    if (edges.size() != 4) site.fail("`padding` (=" + site.attr("padding").brief() + ") must be four integers, before and after h and w");
    for (size_t i = 0; i < 4; i++) {
        const int64_t size = in[1 + i / 2], most = mode == "reflect" ? size - 1 : mode == "circular" ? size : kMostExtent;
        if (edges[i] > most)
            site.fail("`padding` (=" + site.attr("padding").brief() + ") must be at most " + std::to_string(most) + " along an axis of " +
                      std::to_string(size) + " in mode " + mode);
    }
    return {Kind::F32, {in[0], in[1] + edges[0] + edges[1], in[2] + edges[2] + edges[3]}};
}

Value upsample2d(const Site &site) {
    const Shape &in = site.image();
    const std::string mode = mode_of(site, {"nearest", "nearest-exact", "bilinear", "bicubic"});
    const bool aligned = site.flag("align_corners");
    if (aligned && mode != "bilinear" && mode != "bicubic") site.fail("`align_corners` (=true) needs the mode bilinear or bicubic");
    const Json &size = site.attr("size"), &scale = site.attr("scale");
    if (size.is(Json::Type::Null) == scale.is(Json::Type::Null)) site.fail("one of `size` and `scale` must be given, and the other null");
    if (scale.is(Json::Type::Null)) {
        const std::vector<int64_t> sizes = site.integers("size", 1, kMostExtent);
        if (sizes.size() != 2) site.fail("`size` (=" + size.brief() + ") must be rows and columns");
        return {Kind::F32, {in[0], sizes[0], sizes[1]}};
    }
    bool right = scale.is(Json::Type::List) && scale.items().size() == 2;
    for (size_t i = 0; right && i < 2; i++)
        right = scale.items()[i].is_number() && scale.items()[i].number() > 1e-6 && scale.items()[i].number() < 1e6;
    if (!right) site.fail("`scale` (=" + scale.brief() + ") must be two factors above 0");
    Shape out = in;
    for (size_t i = 0; i < 2; i++) {
        const double wanted = std::floor((double)in[1 + i] * scale.items()[i].number());
        if (!(wanted >= 1 && wanted <= (double)kMostExtent)) site.fail("its output is out of range");
        out[1 + i] = (int64_t)wanted;
    }
    return {Kind::F32, out};
}

Value adaptive(const Site &site) {
    const Shape &in = site.image();
    const auto size = site.pair("size", 1);
    return {Kind::F32, {in[0], size.first, size.second}};
}

Value dilated_max_pool2d(const Site &site) {
    const Shape &in = site.image();
    const std::pair<int64_t, int64_t> pairs[] = {site.pair("kernel", 1), site.pair("stride", 1), site.pair("padding", 0), site.pair("dilation", 1)};
    const bool ceil_mode = site.flag("ceil_mode");
    Shape out = in;
    for (size_t i = 0; i < 2; i++) {
        const auto of = [&](size_t which) { return i ? pairs[which].second : pairs[which].first; };
        const int64_t reach = of(3) * (of(0) - 1) + 1;
        if (2 * of(2) > reach) site.fail("`padding` (=" + site.attr("padding").brief() + ") must be at most half of the dilated kernel");
        out[1 + i] = in[1 + i] + 2 * of(2) < reach ? 0 : pooled_size(in[1 + i], reach, of(1), of(2), ceil_mode);
    }
    if (out[1] < 1 || out[2] < 1) no_fit(site, pairs[0].first, pairs[0].second);
    return {Kind::F32, out};
}

int64_t dilated_work(const Site &site, const Value &out) {
    const auto kernel = site.pair("kernel", 1);
    return elements_of(out.shape) * kernel.first * kernel.second;
}

Value constant(const Site &site) {
    const Tensor &value = *site.tensor("value");
    site.real("value", value.shape);
    if (value.shape.empty() || value.shape.size() > 8) site.fail("`value` must have 1 to 8 axes");
    return {Kind::F32, value.shape};
}

// On the CPU.

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
PlainStep adaptive_pool() {
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

PlainStep upsampling(const PlainSite &site) { return upsample2d(site); }
PlainStep pooling(bool maxima) { return maxima ? adaptive_pool<true>() : adaptive_pool<false>(); }

void add_moves(Rows &rows) {
    constexpr auto P = Fusion::Producer;
    const Names sizes{"size"};
    rows.insert(rows.end(), {
        {"concat", {kF}, concat, outputs_work, P, {"axis"}, {}, {}, 2, concat, {}, true},
        {"slice", {kF}, slice, outputs_work, P, {"start", "stop", "step"}, {}, {}, 2, slice},
        {"flip", {kF}, flip, outputs_work, P, {"axis"}, {}, {}, 2, flip},
        {"expand", {kF}, expand, outputs_work, P, {"shape"}, {}, {}, 2, expand},
        {"pixel_shuffle", {kF}, pixel_shuffle, outputs_work, P, {"factor"}, {}, {}, 2, pixel_shuffle},
        {"pixel_unshuffle", {kF}, pixel_unshuffle, outputs_work, P, {"factor"}, {}, {}, 2, pixel_unshuffle},
        {"channel_shuffle", {kF}, channel_shuffle, outputs_work, P, {"groups"}, {}, {}, 2, channel_shuffle},
        {"edge_pad2d", {kF}, edge_pad2d, outputs_work, P, {"padding", "mode"}, {}, {}, 2, edge_pad2d},
        {"upsample2d", {kF}, upsample2d, windows_work, P, {"size", "scale", "mode", "align_corners"}, {}, {}, 2, upsample2d},
        {"adaptive_avg_pool2d", {kF}, adaptive, windows_work, P, sizes, {}, {}, 2, [](const PlainSite &) { return adaptive_pool<false>(); }},
        {"adaptive_max_pool2d", {kF}, adaptive, windows_work, P, sizes, {}, {}, 2, [](const PlainSite &) { return adaptive_pool<true>(); }},
        {"dilated_max_pool2d", {kF}, dilated_max_pool2d, dilated_work, P, {"kernel", "stride", "padding", "dilation", "ceil_mode"}, {}, {}, 2, dilated_max_pool2d},
        {"constant", {kF}, constant, outputs_work, P, {}, {"value"}, {}, 2, constant},
    });
}

}  // namespace xnorpp
