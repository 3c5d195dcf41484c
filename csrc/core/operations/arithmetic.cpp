// Sums, products and factors, element by element.
#include <algorithm>

#include "../plain/walk.h"
#include "rows.h"

namespace xnorpp {
namespace {

// The spatial factor: nothing, `row` and `col`, `map`, or `full`.
void spatial(const Site &site) {
    const bool row = site.tensor("row"), col = site.tensor("col"), map = site.tensor("map"), full = site.tensor("full");
    if (!row && !col && !map && !full) return;
    const Shape &in = site.image();
    if (row && col && !map && !full) site.real("row", {in[1]}), site.real("col", {in[2]});
    else if (map && !row && !col && !full) site.real("map", {in[1], in[2]});
    else if (full && !row && !col && !map) site.real("full", in);
    else site.fail("the spatial tensors must be `row` and `col`, or `map`, or `full`");
}

Value sign(const Site &site) {
    spatial(site);
    const Value &value = *site.inputs[0];
    if (site.tensor("threshold")) site.real("threshold", channels_of(value), true);
    if (const Tensor *flip = site.tensor("flip")) {
        bool right = flip->is_bytes() && flip->shape == channels_of(value);
        for (size_t i = 0; right && i < flip->bytes; i++) right = flip->data[i] <= 1;
        if (!right) site.fail("`flip` must be U8 0 or 1 of shape " + text_of(channels_of(value)));
    }
    return {Kind::Bits, value.shape};
}

Value affine(const Site &site) {
    spatial(site);
    const Value &value = *site.inputs[0];
    for (const char *role : {"mult", "add"})
        if (site.tensor(role)) site.real(role, channels_of(value));
    return {Kind::F32, value.shape};
}

// Shapes that broadcast: as many axes, equal sizes or 1.
Shape broadcast(const Site &site) {
    const Shape &a = site.inputs[0]->shape, &b = site.inputs[1]->shape;
    Shape out = a;
    bool right = a.size() == b.size();
    for (size_t i = 0; right && i < a.size(); i++) right = a[i] == b[i] || a[i] == 1 || b[i] == 1, out[i] = std::max(a[i], b[i]);
    if (!right)
        site.fail("the inputs have shapes " + text_of(a) + " and " + text_of(b) + "; as many axes, equal or 1, are needed");
    return out;
}

// Of set 1, where `broadcast` is absent; true, it takes any shapes that broadcast.
bool spreads(const Site &site) { return site.op.attrs.find("broadcast") && site.flag("broadcast"); }

Value add(const Site &site) {
    const Value &a = *site.inputs[0], &b = *site.inputs[1];
    if (spreads(site)) return {Kind::F32, broadcast(site)};
    if (a.shape != b.shape)
        site.fail("the inputs have shapes " + text_of(a.shape) + " and " + text_of(b.shape) + "; equal ones are needed");
    return a;
}

Value mul(const Site &site) {
    const Value &a = *site.inputs[0], &b = *site.inputs[1];
    if (spreads(site)) return {Kind::F32, broadcast(site)};
    Shape one = a.shape;
    one[0] = 1;
    if (b.shape != a.shape && b.shape != one)
        site.fail("the inputs have shapes " + text_of(a.shape) + " and " + text_of(b.shape) + "; equal, or one channel, is needed");
    return {Kind::F32, a.shape};
}

Value broadcast_value(const Site &site) { return {Kind::F32, broadcast(site)}; }

Value offset(const Site &site) {
    const Shape &in = site.inputs[0]->shape, &given = site.tensor("value")->shape;
    bool right = given.size() == in.size();
    for (size_t i = 0; right && i < in.size(); i++) right = given[i] == in[i] || given[i] == 1;
    if (!right) site.fail("`value` has shape " + text_of(given) + "; the axes of the input, " + text_of(in) + ", or 1, are needed");
    site.real("value", given);
    return {Kind::F32, in};
}

// On the CPU: operands that lie on each other in any way; the ways that epilogues know do not come here.

// How far the axes of the result go in an operand, whose axes of size 1 stand still.
struct Steps {
    int64_t step[kMostRank];
    Steps(const View &in, const View &out) {
        for (size_t i = 0; i < out.rank; i++) step[i] = in.size[i] == out.size[i] ? in.step[i] : 0;
    }
};

template <class Function>
PlainStep combine(Function function) {
    return {[function](const PlainCall &call, int first, int count, float *to) {
        const View &a = call.in[0], &b = call.in[1], &out = call.out;
        const Steps left(a, out), right(b, out);
        Walk x(out, left.step, first), y(out, right.step, first);
        for (int i = 0; i < count; i++, x.next(), y.next()) {
            const float *p = a.data + x.place(), *q = b.data + y.place();
            const int64_t ps = left.step[0], qs = right.step[0];
            float *row = to + (size_t)i * out.stride;
            for (int k = 0; k < out.c; k++) row[k] = function(p[k * ps], q[k * qs]);
        }
    }};
}

PlainStep sum(const PlainSite &) { return combine([](float a, float b) { return a + b; }); }
PlainStep difference(const PlainSite &) { return combine([](float a, float b) { return a - b; }); }
PlainStep product(const PlainSite &) { return combine([](float a, float b) { return a * b; }); }
PlainStep quotient(const PlainSite &) { return combine([](float a, float b) { return a / b; }); }

}  // namespace

void add_arithmetic(Rows &rows) {
    const Names factors{"mult", "add", "row", "col", "map", "full"};
    rows.insert(rows.end(), {
        {"sign", {kN}, sign, outputs_work, Fusion::Sign, {}, {}, {"threshold", "flip", "row", "col", "map", "full"}},
        {"affine", {kN}, affine, outputs_work, Fusion::Pointwise, {}, {}, factors},
        {"add", {kF, kF}, add, outputs_work, Fusion::Pointwise, {}, {}, {}, 1, sum, {"broadcast"}},
        {"mul", {kN, kF}, mul, outputs_work, Fusion::Pointwise, {}, {}, {}, 1, product, {"broadcast"}},
        {"sub", {kF, kF}, broadcast_value, outputs_work, Fusion::Pointwise, {}, {}, {}, 2, difference},
        {"div", {kF, kF}, broadcast_value, outputs_work, Fusion::Pointwise, {}, {}, {}, 2, quotient},
        {"offset", {kF}, offset, outputs_work, Fusion::Pointwise, {}, {"value"}, {}, 2},
    });
}

}  // namespace xnorpp
