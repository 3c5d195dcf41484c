// Functions of one number.
#include "rows.h"

namespace xnorpp {
namespace {

int64_t curve_work(const Site &, const Value &out) { return 8 * elements_of(out.shape); }

Value prelu(const Site &site) {
    const Value &value = *site.inputs[0];
    const bool one = site.tensor("slope")->shape == Shape{1};
    site.real("slope", one ? Shape{1} : channels_of(value));
    return value;
}

Value hardtanh(const Site &site) {
    const Json &low = site.attr("min"), &high = site.attr("max");
    if (!is_float32(low) || !is_float32(high) || low.number() > high.number())
        site.fail("`min` (=" + low.brief() + ") and `max` (=" + high.brief() + ") must be numbers, min <= max");
    return *site.inputs[0];
}

Value elu(const Site &site) {
    site.number("alpha");
    return *site.inputs[0];
}

}  // namespace

void add_activations(Rows &rows) {
    rows.insert(rows.end(), {
        {"relu", {kF}, same_value, outputs_work, Fusion::Pointwise, {}, {}, {}},
        {"prelu", {kF}, prelu, outputs_work, Fusion::Pointwise, {}, {"slope"}, {}},
        {"hardtanh", {kF}, hardtanh, outputs_work, Fusion::Pointwise, {"min", "max"}, {}, {}},
    });
    for (const char *curve : curves()) {
        const bool is_elu = std::string(curve) == "elu";
        rows.push_back({curve, {kF}, is_elu ? elu : same_value, curve_work, Fusion::Pointwise, is_elu ? Names{"alpha"} : Names{}, {}, {}, 2});
    }
}

}  // namespace xnorpp
