// Values that get the size of another one, whatever that is: of the second input only the shape counts.
#include <algorithm>
#include <cmath>

#include "../plain/sources.h"
#include "rows.h"

namespace xnorpp {
namespace {

// Rows or columns by a rule [add, over, times, plus] of those of the other value: floor((n + add) / over) * times + plus.
// Without a rule the input's own.
int64_t by_rule(const Json *rule, int64_t n) { return (n + rule[0].integer) / rule[1].integer * rule[2].integer + rule[3].integer; }
int64_t size_by(const Json &rule, int64_t own, int64_t other) { return rule.is(Json::Type::Null) ? own : by_rule(rule.items().data(), other); }

// Whether four numbers are a rule.
bool is_rule(const Json *items) {
    constexpr int64_t low[] = {0, 1, 1, -kMostExtent}, high[] = {kMostExtent, kMostWindow, kMostWindow, kMostExtent};
    bool right = true;
    for (size_t i = 0; i < 4; i++) right &= items[i].is(Json::Type::Integer) && items[i].integer >= low[i] && items[i].integer <= high[i];
    return right;
}

// How many numbers come before the input's first, below 0 where its first ones are left out; `total` come in all.
int64_t place_by(const Json &before, int64_t total) {
    if (before.is(Json::Type::Integer)) return before.integer;
    if (before.text() == "all") return total;
    const int64_t low = (total - (total & 1)) / 2, high = (total + (total & 1)) / 2;  // the integers around its half
    if (before.text() == "half_even") return low % 2 == 0 ? low : high;
    return before.text() == "half" ? low : high;
}

std::string axis_name(size_t axis) { return axis ? "columns" : "rows"; }

// The result's rows and columns, checked.
Shape sizes(const Site &site) {
    const Shape &in = site.image(), &other = site.image(1);
    const Json &size = site.attr("size");
    bool right = size.is(Json::Type::List) && size.items().size() == 2;
    for (size_t axis = 0; right && axis < 2; axis++) {
        const Json &rule = size.items()[axis];
        right = rule.is(Json::Type::Null) || (rule.is(Json::Type::List) && rule.items().size() == 4 && is_rule(rule.items().data()));
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
        else right = item.is(Json::Type::Text) && (item.text() == "half" || item.text() == "half_up" || item.text() == "half_even" || item.text() == "all");
    }
    if (!right) site.fail("`before` (=" + before.brief() + ") must be two integers, or \"half\", \"half_up\", \"half_even\" or \"all\"");
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

// Each axis a number, -1 for what is left, or [axis, add, over, times, plus]: a rule of that axis of the other value.
Value reshape_to(const Site &site) {
    const Shape &in = site.inputs[0]->shape, &other = site.inputs[1]->shape;
    const Json &shape = site.attr("shape");
    bool right = shape.is(Json::Type::List) && !shape.items().empty() && shape.items().size() <= 8;
    Shape out;
    int64_t known = 1;
    size_t left = 8;
    for (size_t i = 0; right && i < shape.items().size(); i++) {
        const Json &item = shape.items()[i];
        int64_t size = 0;
        if (item.is(Json::Type::Integer)) size = item.integer;
        else if (item.is(Json::Type::List) && item.items().size() == 5 && item.items()[0].is(Json::Type::Integer) && item.items()[0].integer >= 0 &&
                 item.items()[0].integer < (int64_t)other.size() && is_rule(item.items().data() + 1))
            size = by_rule(item.items().data() + 1, other[(size_t)item.items()[0].integer]);
        if (item.is(Json::Type::Integer) && size == -1 && left == 8) left = i, size = 1;
        right = size >= 1 && size <= kMostExtent && known <= kMostElements;
        out.push_back(size), known *= right ? size : 1;
    }
    const int64_t elements = elements_of(in);
    if (right && left < 8 && elements % known == 0) out[left] = elements / known, known = elements;
    if (!right || known != elements)
        site.fail("`shape` (=" + shape.brief() + ") must give 1 to 8 axes with the " + std::to_string(elements) +
                  " elements of the input, each a number, -1 once, or [axis, add, over, times, plus] of " + text_of(other));
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
        {"reshape_to", {kF, any}, reshape_to, outputs_work, Fusion::Reshape, {"shape"}, {}, {}, 3, reshaping, {}, false, 1},
    });
}

}  // namespace xnorpp
