// Numbers that move and stay as they are.
#include <algorithm>

#include "../plain/walk.h"
#include "rows.h"

namespace xnorpp {
namespace {

Value flatten(const Site &site) { return {Kind::F32, {elements_of(site.inputs[0]->shape)}}; }

Value pad2d(const Site &site) {
    const Shape &in = site.image();
    const Json &edges = site.attr("padding"), &value = site.attr("value");
    bool right = edges.is(Json::Type::List) && edges.items().size() == 6;
    for (size_t i = 0; right && i < 6; i++)
        right = edges.items()[i].is(Json::Type::Integer) && edges.items()[i].integer >= 0 && edges.items()[i].integer <= kMostExtent;
    if (!right) site.fail("`padding` (=" + edges.brief() + ") must be six integers, before and after c, h and w");
    if (!is_float32(value)) site.fail("`value` (=" + value.brief() + ") must be a number");
    const auto edge = [&](size_t i) { return edges.items()[i].integer; };
    return {Kind::F32, {in[0] + edge(0) + edge(1), in[1] + edge(2) + edge(3), in[2] + edge(4) + edge(5)}};
}

Value permute(const Site &site) {
    const Shape &in = site.inputs[0]->shape;
    const std::vector<int64_t> axes = site.integers("axes", 0, (int64_t)in.size() - 1);
    Shape out;
    std::vector<bool> seen(in.size());
    for (const int64_t axis : axes) out.push_back(in[(size_t)axis]), seen[(size_t)axis] = true;
    if (axes.size() != in.size() || std::find(seen.begin(), seen.end(), false) != seen.end())
        site.fail("`axes` (=" + site.attr("axes").brief() + ") must name each of the " + std::to_string(in.size()) + " axes once");
    return {Kind::F32, out};
}

Value reshape(const Site &site) {
    const Shape &in = site.inputs[0]->shape, shape = site.integers("shape", 1, kMostExtent);
    if (shape.empty() || shape.size() > 8 || elements_of(shape) != elements_of(in))
        site.fail("`shape` (=" + site.attr("shape").brief() + ") must be 1 to 8 axes with the " + std::to_string(elements_of(in)) + " elements of the input");
    return {Kind::F32, shape};
}

Value signs(const Site &site) { return {Kind::F32, site.inputs[0]->shape}; }

// On the CPU.

// Output axis i is input axis axes[i].
PlainStep permute(const PlainSite &site) {
    const std::vector<int64_t> axes = site.integers("axes");
    return {[axes](const PlainCall &call, int first, int count, float *to) {
        const View &in = call.in[0], &out = call.out;
        int64_t step[kMostRank];
        for (size_t i = 0; i < out.rank; i++) step[i] = in.step[axes[i]];
        Walk walk(out, step, first);
        for (int i = 0; i < count; i++, walk.next()) {
            const float *from = in.data + walk.place();
            float *row = to + (size_t)i * out.stride;
            if (step[0] == 1) std::memcpy(row, from, (size_t)out.c * 4);
            else
                for (int k = 0; k < out.c; k++) row[k] = from[k * step[0]];
        }
    }};
}

// The order of the elements (channel, row, column) stays.
PlainStep reshape(const PlainSite &) {
    return {[](const PlainCall &call, int first, int count, float *to) {
        const View &in = call.in[0], &out = call.out;
        const int64_t wide = out.pixels(), pixels = in.pixels();
        for (int i = 0; i < count; i++) {
            int64_t k = (first + i) / pixels, p = (first + i) % pixels;
            float *row = to + (size_t)i * out.stride;
            for (int channel = 0; channel < out.c; channel++) {
                row[channel] = in.data[p * in.stride + k];
                k += wide / pixels, p += wide % pixels;
                if (p >= pixels) p -= pixels, k++;
            }
        }
    }};
}

}  // namespace

PlainStep reshaping(const PlainSite &site) { return reshape(site); }

void add_shapes(Rows &rows) {
    rows.insert(rows.end(), {
        {"flatten", {kF}, flatten, outputs_work, Fusion::Reshape, {}, {}, {}},
        {"pad2d", {kF}, pad2d, outputs_work, Fusion::Producer, {"padding", "value"}, {}, {}},
        {"signs", {kB}, signs, outputs_work, Fusion::Producer, {}, {}, {}},
        {"permute", {kF}, permute, outputs_work, Fusion::Producer, {"axes"}, {}, {}, 2, permute},
        {"reshape", {kF}, reshape, outputs_work, Fusion::Reshape, {"shape"}, {}, {}, 2, reshape},
    });
}

}  // namespace xnorpp
