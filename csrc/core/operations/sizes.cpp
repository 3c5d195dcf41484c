// Images that get the size of another value, whatever that is: the second input only gives its rows and columns.
#include <algorithm>
#include <cmath>

#include "../plain/sources.h"
#include "rows.h"

namespace xnorpp {
namespace {

// Rows or columns by a rule [add, over, times, plus] of those of the other value: floor((n + add) / over) * times + plus.
// Without a rule the input's own.
int64_t size_by(const Json &rule, int64_t own, int64_t other) {
    if (rule.is(Json::Type::Null)) return own;
    const auto number = [&](size_t i) { return rule.items()[i].integer; };
    return (other + number(0)) / number(1) * number(2) + number(3);
}

// How many numbers come before the input's first, below 0 where its first ones are left out; `total` come in all.
int64_t place_by(const Json &before, int64_t total) {
    if (before.is(Json::Type::Integer)) return before.integer;
    if (before.text() == "all") return total;
    return before.text() == "half" ? (total - (total & 1)) / 2 : (total + (total & 1)) / 2;
}

std::string axis_name(size_t axis) { return axis ? "columns" : "rows"; }

// The result's rows and columns, checked.
Shape sizes(const Site &site) {
    const Shape &in = site.image(), &other = site.image(1);
    const Json &size = site.attr("size");
    constexpr int64_t low[] = {0, 1, 1, -kMostExtent}, high[] = {kMostExtent, kMostWindow, kMostWindow, kMostExtent};
    bool right = size.is(Json::Type::List) && size.items().size() == 2;
    for (size_t axis = 0; right && axis < 2; axis++) {
        const Json &rule = size.items()[axis];
        right = rule.is(Json::Type::Null) || (rule.is(Json::Type::List) && rule.items().size() == 4);
        for (size_t i = 0; right && i < rule.items().size(); i++) {
            const Json &item = rule.items()[i];
            right = item.is(Json::Type::Integer) && item.integer >= low[i] && item.integer <= high[i];
        }
    }
    if (!right)
        site.fail("`size` (=" + size.brief() + ") must be two rules, each null or four integers [add, over, times, plus] in range");
    Shape out = in;
    for (size_t axis = 0; axis < 2; axis++) {
        out[1 + axis] = size_by(size.items()[axis], in[1 + axis], other[1 + axis]);
        if (out[1 + axis] < 1 || out[1 + axis] > kMostExtent)
            site.fail("its result has " + std::to_string(out[1 + axis]) + " " + axis_name(axis) + ", which is out of range");
    }
    return out;
}

Value resize2d(const Site &site) {
    const std::string mode = mode_of(site, {"nearest", "nearest-exact", "bilinear", "bicubic", "mean", "max"});
    if (site.flag("align_corners") && mode != "bilinear" && mode != "bicubic")
        site.fail("`align_corners` (=true) needs the mode bilinear or bicubic");
    return {Kind::F32, sizes(site)};
}

Value fit2d(const Site &site) {
    const std::string mode = mode_of(site, {"constant", "reflect", "replicate", "circular"});
    const Json &before = site.attr("before"), &value = site.attr("value");
    if (!is_float32(value)) site.fail("`value` (=" + value.brief() + ") must be a number");
    bool right = before.is(Json::Type::List) && before.items().size() == 2;
    for (size_t axis = 0; right && axis < 2; axis++) {
        const Json &item = before.items()[axis];
        if (item.is(Json::Type::Integer)) right = std::abs(item.integer) <= kMostExtent;
        else right = item.is(Json::Type::Text) && (item.text() == "half" || item.text() == "half_up" || item.text() == "all");
    }
    if (!right) site.fail("`before` (=" + before.brief() + ") must be two integers, or \"half\", \"half_up\" or \"all\"");
    const Shape &in = site.image(), out = sizes(site);
    for (size_t axis = 0; axis < 2; axis++) {
        const int64_t size = in[1 + axis], total = out[1 + axis] - size, first = place_by(before.items()[axis], total), last = total - first;
        const int64_t most = mode == "reflect" ? size - 1 : mode == "replicate" ? kMostExtent : size;
        const bool fits = mode == "constant" ? first < out[1 + axis] && last < out[1 + axis] : first >= 0 && last >= 0 && first <= most && last <= most;
        if (!fits)
            site.fail("an image of " + std::to_string(size) + " " + axis_name(axis) + " cannot get " + std::to_string(out[1 + axis]) + " with " +
                      std::to_string(first) + " before and " + std::to_string(last) + " after it in mode " + mode);
    }
    return {Kind::F32, out};
}

// On the CPU.

PlainStep resize2d(const PlainSite &site) {
    const std::string mode = site.op.attrs.find("mode")->text();
    return mode == "mean" || mode == "max" ? pooling(mode == "max") : upsampling(site);
}

// For each row (or column) of the result that of the input; -1 where the value is.
std::vector<int32_t> places(const PlainSite &site, size_t axis) {
    const std::string mode = site.op.attrs.find("mode")->text();
    const int64_t in = site.input().shape[1 + axis], out = site.output().shape[1 + axis];
    const int64_t first = place_by(site.op.attrs.find("before")->items()[axis], out - in);
    site.budget.take((size_t)out * sizeof(int32_t));
    std::vector<int32_t> from((size_t)out);
    for (int64_t i = 0; i < out; i++) {
        int64_t at = i - first;
        if (mode == "replicate") at = std::max<int64_t>(0, std::min(at, in - 1));
        else if (mode == "circular") at = (at + in) % in;
        else if (mode == "reflect") at = at < 0 ? -at : at < in ? at : 2 * (in - 1) - at;
        else if (at < 0 || at >= in) at = -1;
        from[(size_t)i] = (int32_t)at;
    }
    return from;
}

PlainStep fit2d(const PlainSite &site) {
    const auto rows = places(site, 0), columns = places(site, 1);
    const float value = site.number("value");
    return {[rows, columns, value](const PlainCall &call, int first, int count, float *to) {
        const View &in = call.in[0];
        for (int i = 0; i < count; i++, to += call.out.stride) {
            const int32_t y = rows[(size_t)((first + i) / call.out.w)], x = columns[(size_t)((first + i) % call.out.w)];
            if (y < 0 || x < 0) std::fill(to, to + call.out.c, value);
            else std::memcpy(to, in.data + ((int64_t)y * in.w + x) * in.stride, (size_t)call.out.c * 4);
        }
    }};
}

}  // namespace

void add_sizes(Rows &rows) {
    constexpr auto P = Fusion::Producer;
    constexpr int any = kF | kB | kN;
    rows.insert(rows.end(), {
        {"resize2d", {kF, any}, resize2d, windows_work, P, {"size", "mode", "align_corners"}, {}, {}, 3, resize2d, {}, false, 1},
        {"fit2d", {kF, any}, fit2d, outputs_work, P, {"size", "before", "mode", "value"}, {}, {}, 3, fit2d, {}, false, 1},
    });
}

}  // namespace xnorpp
