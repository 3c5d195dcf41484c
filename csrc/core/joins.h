// Concatenated channels without a copy: each part is stored at its channels of the whole.
//
// The parts of a concatenation along the channels are views of one block of memory: pixels as far apart as those of the whole,
// the first channel somewhere inside a pixel. What makes a part writes it there, and what reads a part or the whole reads it
// there. The features of a dense block, each a concatenation of the one before and a new part, are one growing block.
#pragma once
#include "program/plan.h"

namespace xnorpp {

struct Joins {
    std::vector<int> whole;      // of each value: the concatenation that it is a part of in memory, -1: none
    std::vector<int64_t> first;  // and the channel of it that the part begins at

    // The outermost concatenation that a value lies in, itself where it lies in none, and where it begins there.
    int root(int value, int64_t *channel = nullptr) const;
};

// Decides which concatenations need no copy. Their steps become pointwise ones over the whole, with what was fused to them or
// nothing to do. `multiple` is what the channels before a part must be a multiple of: kernels write whole vectors.
Joins join_parts(const Program &program, std::vector<PlanStep> &steps, int64_t multiple);

// Moves that follow one another as one copy: each step of a move reads from where its chain begins, and a move whose result
// nobody reads any more has nothing left to do.
struct MoveLink {
    int op;       // -1: a reshape
    Shape shape;  // of what it makes
};
using MoveChain = std::vector<MoveLink>;
// One for each step, empty where it is none.
std::vector<MoveChain> join_moves(const Program &program, std::vector<PlanStep> &steps);

// The values as the engine stores them: where products of matrices, softmax and moves alone see the axes before the last two,
// these are one. The shapes of steps and the chains follow.
std::vector<Value> merge_axes(const Program &program, std::vector<PlanStep> &steps, std::vector<MoveChain> &chains);

}  // namespace xnorpp
