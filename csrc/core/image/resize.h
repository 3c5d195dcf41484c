// Pixels of 8 bits per channel: colour modes, and resizing as Pillow does it, bit for bit. Networks are trained on images that
// Pillow resized, so another filter, or the same one rounded in another way, would be another input.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

namespace xnorpp {

// Rows of `width` pixels of `channels` bytes: 1 grey, 2 grey and alpha, 3 RGB, 4 RGBA.
struct Image {
    int width = 0, height = 0, channels = 0;
    std::vector<uint8_t> bytes;
};

// The part of an image that a result comes from, in pixels. Single precision, as in Pillow.
struct Region {
    float left = 0, top = 0, right = 0, bottom = 0;
};

enum class Interpolation { Nearest, Bilinear, Bicubic, Lanczos };

// Pixels of `channels` as pixels of another number of them: grey is 0.299 R + 0.587 G + 0.114 B, a missing alpha is 255.
Image with_channels(const uint8_t *pixels, int width, int height, int channels, int wanted);

// Where it shrinks, the filter widens with the scale ("antialias"). Colours are weighted by their alpha.
Image resize(const Image &image, int width, int height, const Region &region, Interpolation interpolation);

Image crop(const Image &image, int left, int top, int width, int height);

}  // namespace xnorpp
