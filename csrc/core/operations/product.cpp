// Linear layers and what else multiplies and adds over a whole axis.
#include "rows.h"

namespace xnorpp {
namespace {

Value linear(const Site &site) {
    const int64_t i = site.vector();
    const Tensor &weight = *site.tensor("weight");
    if (weight.shape.size() != 2) site.fail("`weight` has shape " + text_of(weight.shape) + "; (o, " + std::to_string(i) + ") is needed");
    site.real("weight", {weight.shape[0], i});
    const Value out{Kind::F32, {weight.shape[0]}};
    if (site.tensor("bias")) site.real("bias", channels_of(out));
    return out;
}

template <Kind kind>
Value bit_linear(const Site &site) {
    const int64_t i = site.vector();
    const Tensor &weight = *site.tensor("weight");
    if (!weight.is_bits()) site.fail("`weight` is " + std::string(name_of(weight.encoding)) + "; one bit in U8 is needed");
    if (i > kMostTaps)
        site.fail("the input has " + std::to_string(i) + " channels; a dot product has at most " + std::to_string(kMostTaps));
    if (weight.shape.size() != 2)
        site.fail("`weight` has shape " + text_of(weight.shape) + "; (o, " + std::to_string((i + 7) / 8) + ") is needed");
    site.bits("weight", {weight.shape[0], i});
    return {kind, {weight.shape[0]}};
}

Value softmax(const Site &site) {
    site.vector();
    return *site.inputs[0];
}

}  // namespace

void add_products(Rows &rows) {
    rows.insert(rows.end(), {
        {"linear", {kF}, linear, filter_work, Fusion::Producer, {}, {"weight"}, {"bias"}},
        {"binary_linear", {kB}, bit_linear<Kind::Int>, filter_work, Fusion::Producer, {}, {"weight"}, {}},
        {"bitweight_linear", {kF}, bit_linear<Kind::F32>, filter_work, Fusion::Producer, {}, {"weight"}, {}},
        {"softmax", {kF}, softmax, outputs_work, Fusion::Producer, {}, {}, {}},
    });
}

}  // namespace xnorpp
