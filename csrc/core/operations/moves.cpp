// Numbers that are joined, chosen, repeated, enlarged or pooled by windows of different sizes.
#include <algorithm>
#include <cmath>

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

std::string mode_of(const Site &site, const std::vector<const char *> &allowed) {
    const Json &mode = site.attr("mode");
    std::string names;
    for (const char *name : allowed) {
        if (mode.is(Json::Type::Text) && mode.text() == name) return name;
        names += (names.empty() ? "" : ", ") + std::string(name);
    }
    site.fail("`mode` (=" + mode.brief() + ") must be one of " + names);
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

int64_t windows_work(const Site &site, const Value &out) {
    return std::max(elements_of(site.inputs[0]->shape), elements_of(out.shape)) * 4;
}

}  // namespace

void add_moves(Rows &rows) {
    constexpr auto P = Fusion::Producer;
    const Names sizes{"size"};
    rows.insert(rows.end(), {
        {"concat", {kF}, concat, outputs_work, P, {"axis"}, {}, {}, 2, {}, true},
        {"slice", {kF}, slice, outputs_work, P, {"start", "stop", "step"}, {}, {}, 2},
        {"flip", {kF}, flip, outputs_work, P, {"axis"}, {}, {}, 2},
        {"expand", {kF}, expand, outputs_work, P, {"shape"}, {}, {}, 2},
        {"pixel_shuffle", {kF}, pixel_shuffle, outputs_work, P, {"factor"}, {}, {}, 2},
        {"pixel_unshuffle", {kF}, pixel_unshuffle, outputs_work, P, {"factor"}, {}, {}, 2},
        {"channel_shuffle", {kF}, channel_shuffle, outputs_work, P, {"groups"}, {}, {}, 2},
        {"edge_pad2d", {kF}, edge_pad2d, outputs_work, P, {"padding", "mode"}, {}, {}, 2},
        {"upsample2d", {kF}, upsample2d, windows_work, P, {"size", "scale", "mode", "align_corners"}, {}, {}, 2},
        {"adaptive_avg_pool2d", {kF}, adaptive, windows_work, P, sizes, {}, {}, 2},
        {"adaptive_max_pool2d", {kF}, adaptive, windows_work, P, sizes, {}, {}, 2},
        {"dilated_max_pool2d", {kF}, dilated_max_pool2d, dilated_work, P, {"kernel", "stride", "padding", "dilation", "ceil_mode"}, {}, {}, 2},
        {"constant", {kF}, constant, outputs_work, P, {}, {"value"}, {}, 2},
    });
}

}  // namespace xnorpp
