// Convolutions: of real numbers, of bits, and of real numbers with one-bit filters.
#include <algorithm>

#include "rows.h"

namespace xnorpp {
namespace {

constexpr double kLeastSteps = 1e-15, kMostSteps = 1e15;
constexpr int64_t kLargestTap = 127 * 256 + 127;  // of a number that is two signed bytes

int64_t groups_of(const Site &site) {
    const int64_t c = site.image()[0];
    const Json &groups = site.attr("groups");
    if (!groups.is(Json::Type::Integer) || groups.integer < 1 || groups.integer > c || c % groups.integer)
        site.fail("`groups` (=" + groups.brief() + ") must divide the " + std::to_string(c) + " input channels");
    return groups.integer;
}

// What a convolution over the bytes of an image is told: whole-numbered filters, all four tensors or none.
void byte_filters(const Site &site, const Value &out, int64_t kh, int64_t kw) {
    const char *roles[] = {"byte_weight", "byte_mean", "byte_rest", "byte_scale"};
    int given = 0;
    for (const char *role : roles) given += site.tensor(role) != nullptr;
    if (!given) return;
    if (given != 4 || site.version == 1)
        site.fail("`byte_weight`, `byte_mean`, `byte_rest` and `byte_scale` must be given together, in version 2");
    const int64_t o = out.channels(), c = site.image()[0];
    const Tensor &weight = *site.tensor("byte_weight"), &mean = *site.tensor("byte_mean"), &rest = *site.tensor("byte_rest");
    if (weight.encoding != Encoding::Int16 || weight.shape != Shape{o, c, kh, kw})
        site.fail("`byte_weight` must be int16 of shape " + text_of({o, c, kh, kw}));
    if (mean.encoding != Encoding::Int16 || mean.shape != Shape{o, kh, kw})
        site.fail("`byte_mean` must be int16 of shape " + text_of({o, kh, kw}));
    if (rest.encoding != Encoding::Int32 || rest.shape != Shape{o}) site.fail("`byte_rest` must be int32 of shape " + text_of({o}));
    site.real("byte_scale", {o});
    if (site.op.inputs[0] != 0 || groups_of(site) != 1 || site.pair("dilation", 1).second != 1)
        site.fail("`byte_weight` needs an operation on the input itself, in one group and without dilation along a row");
    const auto q = integers_of(weight), m = integers_of(mean), r = integers_of(rest);
    const size_t taps = (size_t)(kh * kw), inputs = taps * (size_t)c;
    for (size_t f = 0; f < (size_t)o; f++) {
        int64_t sum = 0, most = 0;
        for (size_t i = 0; i < inputs; i++) {
            const int64_t size = std::abs((int64_t)q[f * inputs + i]);
            sum += size, most = std::max(most, size);
        }
        for (size_t i = 0; i < taps; i++) {
            const int64_t size = std::abs((int64_t)m[f * taps + i]);
            sum += size, most = std::max(most, size);
        }
        if (most > kLargestTap || 255 * sum + std::abs((int64_t)r[f]) > INT32_MAX)
            site.fail("the whole-numbered filters of `byte_weight` are out of range");
    }
}

Value conv(const Site &site, bool packed, Kind kind) {
    const int64_t c = site.image()[0], groups = groups_of(site), fan = c / groups;
    const Tensor &weight = *site.tensor("weight");
    if (packed ? !weight.is_bits() : !weight.is_real())
        site.fail("`weight` is " + std::string(name_of(weight.encoding)) + "; " + (packed ? "one bit in U8" : "F32 or F16") + " is needed");
    if (weight.shape.size() != 4) site.fail("`weight` has shape " + text_of(weight.shape) + "; 4 axes are needed");
    const auto kernel = window_of(weight);
    const int64_t o = weight.shape[0], kh = kernel.first, kw = kernel.second;
    if (o % groups)
        site.fail("`weight` has " + std::to_string(o) + " filters; a positive multiple of `groups` (=" + std::to_string(groups) + ") is needed");
    const std::string named = "a " + std::to_string(kh) + "x" + std::to_string(kw) + " kernel";
    if (kh > kMostWindow || kw > kMostWindow) site.fail(named + " is out of range; 1 to " + std::to_string(kMostWindow) + " are allowed");
    if (fan * kh * kw > kMostTaps)
        site.fail(named + " over " + std::to_string(fan) + " channels has more than " + std::to_string(kMostTaps) +
                  " inputs, which a dot product may not have");
    const auto out = windows(site, kh, kw);
    const Value value{kind, {o, out.first, out.second}};
    if (packed) site.bits("weight", {o, kh, kw, fan});
    else site.real("weight", {o, fan, kh, kw});
    return value;
}

Value conv2d(const Site &site) {
    const Value out = conv(site, false, Kind::F32);
    if (site.tensor("bias")) site.real("bias", channels_of(out));
    const auto kernel = window_of(*site.tensor("weight"));
    byte_filters(site, out, kernel.first, kernel.second);
    return out;
}

Value int_conv2d(const Site &site) {
    const Value out = conv(site, false, Kind::F32);
    if (site.tensor("bias")) site.real("bias", channels_of(out));
    const Tensor &weight = *site.tensor("weight");
    if (weight.scale < 0 || weight.encoding != Encoding::Int8) site.fail("`weight` is " + std::string(name_of(weight.encoding)) + "; int8 with a scale is needed");
    if (groups_of(site) != 1 || site.pair("dilation", 1).second != 1) site.fail("one group and no dilation along a row are needed");
    const int64_t limit = site.integer("limit", 1, 32767);
    const double steps = site.number("steps");
    if (!(steps >= kLeastSteps && steps <= kMostSteps)) site.fail("`steps` (=" + site.attr("steps").brief() + ") must be between 1e-15 and 1e15");
    const auto whole = integers_of(weight);
    const size_t inputs = whole.size() / (size_t)weight.shape[0];
    for (size_t f = 0; f < (size_t)weight.shape[0]; f++) {
        int64_t sum = 0;
        for (size_t i = 0; i < inputs; i++) sum += std::abs((int64_t)whole[f * inputs + i]);
        if (sum * limit > INT32_MAX) site.fail("the sums of `weight` times `limit` (=" + std::to_string(limit) + ") are out of range");
    }
    return out;
}

Value binary_conv2d(const Site &site) {
    const Value out = conv(site, true, Kind::Int);
    const Json &pad = site.attr("pad_value");
    if (!pad.is(Json::Type::Integer) || pad.integer < -1 || pad.integer > 1)
        site.fail("`pad_value` (=" + pad.brief() + ") must be -1, 0 or 1");
    return out;
}

Value bitweight_conv2d(const Site &site) {
    const Value out = conv(site, true, Kind::F32);
    const auto kernel = window_of(*site.tensor("weight"));
    byte_filters(site, out, kernel.first, kernel.second);
    return out;
}

}  // namespace

void add_convolutions(Rows &rows) {
    const Names geometry{"stride", "padding", "dilation", "groups"}, weight{"weight"};
    const Names binary{"stride", "padding", "dilation", "groups", "pad_value"};
    const Names rounded{"stride", "padding", "dilation", "groups", "steps", "limit"};
    const Names stem{"byte_weight", "byte_mean", "byte_rest", "byte_scale"};
    const Names stem_bias{"bias", "byte_weight", "byte_mean", "byte_rest", "byte_scale"};
    rows.insert(rows.end(), {
        {"conv2d", {kF}, conv2d, filter_work, Fusion::Producer, geometry, weight, stem_bias},
        {"binary_conv2d", {kB}, binary_conv2d, filter_work, Fusion::Producer, binary, weight, {}},
        {"int_conv2d", {kF}, int_conv2d, filter_work, Fusion::Producer, rounded, weight, {"bias"}, 2},
        {"bitweight_conv2d", {kF}, bitweight_conv2d, filter_work, Fusion::Producer, geometry, weight, stem},
    });
}

}  // namespace xnorpp
