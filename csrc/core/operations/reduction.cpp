// Sums, means and extremes along axes, and normalisation by them.
#include <algorithm>

#include "rows.h"

namespace xnorpp {
namespace {

Value reduce(const Site &site) {
    const Shape &in = site.inputs[0]->shape;
    const Json &function = site.attr("function");
    bool known = false;
    for (const char *name : {"mean", "sum", "max", "min", "l2"}) known |= function.is(Json::Type::Text) && function.text() == name;
    if (!known) site.fail("`function` (=" + function.brief() + ") must be mean, sum, max, min or l2");
    const std::vector<int64_t> axes = site.integers("axes", 0, (int64_t)in.size() - 1);
    for (size_t i = 0; i < axes.size(); i++)
        if (i && axes[i] <= axes[i - 1]) site.fail("`axes` (=" + site.attr("axes").brief() + ") must rise");
    if (axes.empty()) site.fail("`axes` is empty; at least one axis is needed");
    Shape out = in;
    for (const int64_t axis : axes) out[(size_t)axis] = 1;
    return {Kind::F32, out};
}

Value norm(const Site &site) {
    const Shape &in = site.inputs[0]->shape;
    const int64_t groups = site.integer("groups", 1, in[0]);
    if (in[0] % groups) site.fail("`groups` (=" + std::to_string(groups) + ") must divide the " + std::to_string(in[0]) + " channels");
    site.flag("pixels"), site.flag("centre");
    const double eps = site.number("eps");
    if (eps < 0) site.fail("`eps` (=" + site.attr("eps").brief() + ") must not be negative");
    return {Kind::F32, in};
}

int64_t norm_work(const Site &, const Value &out) { return 4 * elements_of(out.shape); }

}  // namespace

void add_reductions(Rows &rows) {
    rows.insert(rows.end(), {
        {"reduce", {kF}, reduce, inputs_work, Fusion::Producer, {"function", "axes"}, {}, {}, 2},
        {"norm", {kF}, norm, norm_work, Fusion::Producer, {"groups", "pixels", "centre", "eps"}, {}, {}, 2},
    });
}

}  // namespace xnorpp
