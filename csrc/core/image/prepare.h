// From an image of any size to a network's input, as the file states it: `Preprocess` of the Python package (its docstring has
// the rules), and from outputs to probabilities.
#pragma once
#include <optional>

#include "../program/program.h"
#include "resize.h"

namespace xnorpp {

struct Preparation {
    int resize_height = 0, resize_width = 0;
    bool one_number = true;  // `resize` is an integer: squash crops at floor(margin / 2), keep scales the shorter side
    int height = 0, width = 0, channels = 0;  // of the result
    bool keeps_aspect = false;
    Interpolation interpolation = Interpolation::Bilinear;
    std::vector<float> mean, std;

    // uint8 [height][width][channels].
    std::vector<uint8_t> apply(const uint8_t *pixels, int columns, int rows, int given) const;
    // (x / 255 - mean) / std, each operation rounded: float [channels][height][width].
    std::vector<float> normalise(const std::vector<uint8_t> &bytes) const;
};

// What the program states, with defaults for what it leaves out; nothing where its input is not an image of 1 to 4 channels.
// An Error where a field is wrong or does not fit the input.
std::optional<Preparation> preparation_of(const Program &program);

// Softmax of the first output divided by the stored temperature, in place.
void to_probabilities(const Program &program, float *outputs, size_t classes);

}  // namespace xnorpp
