// Where the numbers of a value come from after any chain of moves: permutes, reshapes, slices, repeated and shuffled axes.
//
// An axis is a list of digits, the slowest first, and each digit has a step in the memory of the value that the chain began
// with. A reshape deals the digits out anew and splits some; a permute changes their order. However long it is, a chain is
// one copy along digits.
#pragma once
#include "plain.h"

namespace xnorpp {

class Moved {
  public:
    explicit Moved(const View &source);  // each axis of it is one digit

    // The moves. False: the result has no such form; the places are no longer of use.
    bool apply(const Operation &op, const Shape &out);
    bool reshape(const Shape &out);

    // A plain step that copies into `out`, a view of what the moves made.
    PlainStep copy(const View &out, const Kernels &kernels) const;

  private:
    struct Digit {
        int64_t n, step;
        bool channel;  // of the first axis of the source, whose neighbours lie side by side
    };
    using Axis = std::vector<Digit>;

    static Axis merged(const Axis &axis);
    bool slice(Axis &axis, int64_t start, int64_t count, int64_t step);
    bool regroup(const Shape &inner, const std::vector<int64_t> &order, const Shape &out);

    std::vector<Axis> axes_;
    int64_t first_ = 0;
};

// Whether `Moved::apply` knows an operation.
bool is_move(const Operation &op);

}  // namespace xnorpp
