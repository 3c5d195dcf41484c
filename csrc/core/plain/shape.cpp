// Numbers that move and stay as they are.
#include "walk.h"

namespace xnorpp {
namespace {

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

void add_plain_shapes(PlainRows &rows) {
    rows.push_back({"permute", permute});
    rows.push_back({"reshape", reshape});
}

}  // namespace xnorpp
