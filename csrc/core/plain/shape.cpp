// Numbers that move and stay as they are.
#include "plain.h"

namespace xnorpp {
namespace {

// Walks over the pixels of a value in order, in terms of another view with the same axes after the first.
class Walk {
  public:
    Walk(const View &shape, const int64_t *step, int first) : shape_(shape), step_(step) {
        int64_t rest = first;
        for (size_t axis = shape.rank; axis-- > 1; rest /= shape.size[axis]) at_[axis] = rest % shape.size[axis], place_ += at_[axis] * step[axis];
    }
    int64_t place() const { return place_; }
    void next() {
        for (size_t axis = shape_.rank; axis-- > 1;) {
            place_ += step_[axis];
            if (++at_[axis] < shape_.size[axis]) return;
            place_ -= at_[axis] * step_[axis], at_[axis] = 0;
        }
    }

  private:
    const View &shape_;
    const int64_t *step_;
    int64_t at_[kMostRank] = {}, place_ = 0;
};

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
