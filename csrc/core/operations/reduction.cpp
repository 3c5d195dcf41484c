// Sums, means and extremes along axes, and normalisation by them. Sums are of doubles and are rounded to float once, so that
// the order in which an engine adds does not matter.
#include <algorithm>
#include <cmath>

#include "../plain/walk.h"
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

// On the CPU.

enum class Reduce { Mean, Sum, Max, Min, L2 };

// The larger (smaller) one; a NaN stays.
inline float larger(float best, float u) { return u <= best || best != best ? best : u; }
inline float smaller(float best, float u) { return u >= best || best != best ? best : u; }

template <Reduce kind>
struct Sums {
    using Number = typename std::conditional<kind == Reduce::Max || kind == Reduce::Min, float, double>::type;
    static Number first() { return kind == Reduce::Max ? -INFINITY : kind == Reduce::Min ? INFINITY : 0; }
    static Number next(Number sum, float u) {
        if constexpr (kind == Reduce::Max) return larger(sum, u);
        else if constexpr (kind == Reduce::Min) return smaller(sum, u);
        else if constexpr (kind == Reduce::L2) return sum + (double)u * u;
        else return sum + u;
    }
    static Number join(Number a, Number b) {
        if constexpr (kind == Reduce::Max) return larger(a, b);
        else if constexpr (kind == Reduce::Min) return smaller(a, b);
        else return a + b;
    }
    static float last(Number sum, double count) {
        return (float)(kind == Reduce::Mean ? sum / count : kind == Reduce::L2 ? (Number)std::sqrt((double)sum) : sum);
    }
};

template <Reduce kind>
PlainStep reduce_by(const PlainSite &site) {
    using S = Sums<kind>;
    const std::vector<int64_t> axes = site.integers("axes");
    std::vector<bool> gone(site.input().shape.size());
    for (const int64_t axis : axes) gone[(size_t)axis] = true;
    const size_t channels = (size_t)site.input().shape[0];
    PlainStep step;
    step.scratch = channels * 8;
    step.run = [gone](const PlainCall &call, int first, int count, float *to) {
        const View &in = call.in[0], &out = call.out;
        // The axes that stay lead to where a sum begins, the others through it.
        int64_t stay[kMostRank] = {};
        View inner = in;
        int64_t members = 1;
        for (size_t axis = 1; axis < in.rank; axis++) {
            stay[axis] = gone[axis] ? 0 : in.step[axis];
            inner.size[axis] = gone[axis] ? in.size[axis] : 1;
            members *= inner.size[axis];
        }
        auto *sums = (typename S::Number *)call.scratch;
        Walk begin(out, stay, first);
        for (int i = 0; i < count; i++, begin.next()) {
            for (int k = 0; k < in.c; k++) sums[k] = S::first();
            Walk through(inner, in.step, 0);
            for (int64_t m = 0; m < members; m++, through.next()) {
                const float *from = in.data + begin.place() + through.place();
                for (int k = 0; k < in.c; k++) sums[k] = S::next(sums[k], from[k]);
            }
            float *row = to + (size_t)i * out.stride;
            if (gone[0]) {
                auto all = sums[0];
                for (int k = 1; k < in.c; k++) all = S::join(all, sums[k]);
                row[0] = S::last(all, (double)members * in.c);
            } else {
                for (int k = 0; k < in.c; k++) row[k] = S::last(sums[k], (double)members);
            }
        }
    };
    return step;
}

PlainStep reduce(const PlainSite &site) {
    const std::string &function = site.op.attrs.find("function")->text();
    if (function == "mean") return reduce_by<Reduce::Mean>(site);
    if (function == "sum") return reduce_by<Reduce::Sum>(site);
    if (function == "max") return reduce_by<Reduce::Max>(site);
    if (function == "min") return reduce_by<Reduce::Min>(site);
    return reduce_by<Reduce::L2>(site);
}

PlainStep norm(const PlainSite &site) {
    const int groups = site.op.integer("groups");
    const bool all = site.op.attrs.find("pixels")->boolean, centre = site.op.attrs.find("centre")->boolean;
    const double eps = site.op.attrs.find("eps")->number();
    const size_t channels = (size_t)site.input().shape[0];
    PlainStep step;
    step.scratch = channels * 2 * sizeof(float);
    const Kernels &kernels = site.kernels;
    step.run = [=, &kernels](const PlainCall &call, int first, int count, float *to) {
        const View &in = call.in[0];
        const int size = in.c / groups;
        if (!all) {
            kernels.normalise(in.data + (size_t)first * in.stride, (size_t)in.stride, count, groups, size, centre, eps, to, (size_t)call.out.stride);
            return;
        }
        float *mean = (float *)call.scratch, *factor = mean + in.c;
        if (call.fresh && groups == in.c) {
            kernels.channel_moments(in.data, (size_t)in.stride, in.pixels(), in.c, centre, eps, mean, factor);
        } else if (call.fresh) {
            for (int g = 0; g < groups; g++) {
                const Moments found = kernels.moments(in.data + (size_t)g * size, (size_t)in.stride, in.pixels(), size, centre, eps);
                for (int k = g * size; k < (g + 1) * size; k++) mean[k] = found.mean, factor[k] = found.factor;
            }
        }
        for (int i = 0; i < count; i++) {
            const float *from = in.data + (size_t)(first + i) * in.stride;
            float *row = to + (size_t)i * call.out.stride;
            for (int k = 0; k < in.c; k++) row[k] = (from[k] - mean[k]) * factor[k];
        }
    };
    return step;
}

}  // namespace

void add_reductions(Rows &rows) {
    rows.insert(rows.end(), {
        {"reduce", {kF}, reduce, inputs_work, Fusion::Producer, {"function", "axes"}, {}, {}, 2, reduce},
        {"norm", {kF}, norm, norm_work, Fusion::Producer, {"groups", "pixels", "centre", "eps"}, {}, {}, 2, norm},
    });
}

}  // namespace xnorpp
