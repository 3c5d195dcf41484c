// What an enlarged image is made of: for each of its rows and columns those of the input, and their weights.
#pragma once
#include <algorithm>
#include <cmath>

#include "plain.h"

namespace xnorpp {

// The step from one pixel of the result to the next, in pixels of the input: as torch has it, in float32.
inline float ratio_of(const PlainSite &site, size_t axis, bool aligned) {
    const int64_t in = site.input().shape[1 + axis], out = site.output().shape[1 + axis];
    if (aligned) return out > 1 ? (float)(in - 1) / (float)(out - 1) : 0.0f;
    const Json *scale = site.op.attrs.find("scale");
    return !scale || scale->is(Json::Type::Null) ? (float)in / (float)out : (float)(1.0 / scale->items()[axis].number());
}

struct Tap {
    int32_t first, second;  // rows or columns
    float low, high;        // their weights
};

inline std::vector<Tap> taps_of(const PlainSite &site, size_t axis, bool aligned) {
    const int64_t in = site.input().shape[1 + axis], out = site.output().shape[1 + axis];
    const float ratio = ratio_of(site, axis, aligned);
    site.budget.take((size_t)out * sizeof(Tap));
    std::vector<Tap> taps((size_t)out);
    for (size_t i = 0; i < taps.size(); i++) {
        float place = aligned ? ratio * (float)i : ratio * ((float)i + 0.5f) - 0.5f;
        place = place < 0 ? 0 : place;
        const int64_t first = std::min((int64_t)place, in - 1);
        const float high = std::min(std::max(place - (float)first, 0.0f), 1.0f);
        taps[i] = {(int32_t)first, (int32_t)std::min(first + 1, in - 1), 1.0f - high, high};
    }
    return taps;
}

struct CubicTap {
    int32_t at[4];  // rows or columns
    float weight[4];
};

// The weights of the four numbers around a place that is `t` after the second.
inline void cubic_weights(double t, float *weight) {
    constexpr double a = -0.75;
    const auto near = [](double d) { return ((a + 2) * d - (a + 3)) * d * d + 1; };
    const auto far = [](double d) { return ((a * d - 5 * a) * d + 8 * a) * d - 4 * a; };
    weight[0] = (float)far(t + 1), weight[1] = (float)near(t), weight[2] = (float)near(1 - t), weight[3] = (float)far(2 - t);
}

inline std::vector<CubicTap> cubic_taps_of(const PlainSite &site, size_t axis, bool aligned) {
    const int64_t in = site.input().shape[1 + axis], out = site.output().shape[1 + axis];
    const float ratio = ratio_of(site, axis, aligned);
    site.budget.take((size_t)out * sizeof(CubicTap));
    std::vector<CubicTap> taps((size_t)out);
    for (size_t i = 0; i < taps.size(); i++) {
        const float place = aligned ? ratio * (float)i : ratio * ((float)i + 0.5f) - 0.5f, whole = std::floor(place);
        const int64_t first = (int64_t)whole - 1;
        for (int64_t k = 0; k < 4; k++) taps[i].at[k] = (int32_t)std::min(std::max<int64_t>(first + k, 0), in - 1);
        cubic_weights((double)(place - whole), taps[i].weight);
    }
    return taps;
}

}  // namespace xnorpp
