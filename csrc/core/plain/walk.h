// Walks over the pixels of a value in order, along steps of another one with the same axes.
#pragma once
#include "plain.h"

namespace xnorpp {

class Walk {
  public:
    // `shape` is whose pixels are walked over, from `first` on; `step` how far each of its axes goes.
    Walk(const View &shape, const int64_t *step, int first) : shape_(shape), step_(step) {
        int64_t rest = first;
        for (size_t axis = shape.rank; axis-- > 1; rest /= shape.size[axis]) {
            at_[axis] = rest % shape.size[axis];
            place_ += at_[axis] * step[axis];
        }
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

}  // namespace xnorpp
