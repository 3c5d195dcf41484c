// Operations in plain C++: one function for each, without a line in the engine.
//
// A plain function fills pixels of its result from views of its inputs; the engine gives it pieces (runs of pixels) from as
// many threads as there are, runs the epilogue over what it filled (activations, sums, signs of the next layers) and stores
// the result. It may read all of its inputs, but keeps nothing between calls except in its scratch.
//
// The functions are in ../operations, one file for each family, with the rows of their operations.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "../memory.h"
#include "../program/program.h"

namespace xnorpp {

constexpr size_t kMostRank = 8;

// A value in memory: number k of pixel p is data[p*stride + k], or bit k%8 of byte bits[p*stride + k/8]. The pixels are its
// axes after the first, in order. `size` and `step` are the axes of its shape, the first one the channels, and how far apart
// neighbours along each are in `data`, so that any rank is walked the same way.
struct View {
    const float *data = nullptr;
    const uint8_t *bits = nullptr;
    int c = 1, h = 1, w = 1, stride = 16;
    size_t rank = 1;
    int64_t size[kMostRank] = {}, step[kMostRank] = {};
    int pixels() const { return h * w; }
};

// What a call of a plain function sees.
struct PlainCall {
    const View *in;
    const View &out;  // its shape; `data` is null, results go to `to`
    char *scratch;    // as many bytes as the function asked for, of this thread, aligned
    bool fresh;       // the first piece that this thread does of this step for this image: what `scratch` holds is not there yet
};

// Fills `count` pixels from `first` on: number k of pixel first + i goes to to[i*out.stride + k], k < out.c.
using PlainFunction = std::function<void(const PlainCall &call, int first, int count, float *to)>;

// What a plain operation asks of the engine.
struct PlainStep {
    PlainFunction run;
    int grain = 0;       // pixels of a piece; 0: some 4,096 numbers
    size_t scratch = 0;  // bytes for each thread
};

// What the maker of a function may look at: it is called once, when a program is loaded.
struct PlainSite {
    const Program &program;
    const Operation &op;
    const Kernels &kernels;
    Budget &budget;                    // asked before memory is allocated by a file's wish
    const std::vector<Value> &values;  // as the engine stores them: some have fewer axes than in the program (joins.h)

    const Value &input(size_t index = 0) const { return values[(size_t)op.inputs[index]]; }
    const Value &output() const { return values[(size_t)op.output]; }
    bool has(const char *role) const { return op.tensor(role) >= 0; }
    std::vector<float> floats(const char *role) const;  // of a tensor
    std::vector<int64_t> integers(const char *attr) const;
    float number(const char *attr) const { return (float)op.attrs.find(attr)->number(); }
};

// A view of a value with that many floats (bytes for bits) of a pixel; its memory is not known yet.
View view_of(const Value &value, int stride);

}  // namespace xnorpp
