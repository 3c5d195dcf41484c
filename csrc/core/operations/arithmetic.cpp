// Sums, products and factors, element by element.
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

Value add(const Site &site) {
    const Value &a = *site.inputs[0], &b = *site.inputs[1];
    if (a.shape != b.shape)
        site.fail("the inputs have shapes " + text_of(a.shape) + " and " + text_of(b.shape) + "; equal ones are needed");
    return a;
}

Value mul(const Site &site) {
    const Value &a = *site.inputs[0], &b = *site.inputs[1];
    Shape one = a.shape;
    one[0] = 1;
    if (b.shape != a.shape && b.shape != one)
        site.fail("the inputs have shapes " + text_of(a.shape) + " and " + text_of(b.shape) + "; equal, or one channel, is needed");
    return {Kind::F32, a.shape};
}

}  // namespace

void add_arithmetic(Rows &rows) {
    const Names factors{"mult", "add", "row", "col", "map", "full"};
    rows.insert(rows.end(), {
        {"sign", {kN}, sign, outputs_work, Fusion::Sign, {}, {}, {"threshold", "flip", "row", "col", "map", "full"}},
        {"affine", {kN}, affine, outputs_work, Fusion::Pointwise, {}, {}, factors},
        {"add", {kF, kF}, add, outputs_work, Fusion::Pointwise, {}, {}, {}},
        {"mul", {kN, kF}, mul, outputs_work, Fusion::Pointwise, {}, {}, {}},
    });
}

}  // namespace xnorpp
