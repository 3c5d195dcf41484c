#include "resize.h"

#include <algorithm>
#include <cmath>

namespace xnorpp {
namespace {

constexpr int kPrecision = 32 - 8 - 2;  // bits after the point of a filter's weight: eight of the pixel, two of room above
constexpr double kPi = 3.14159265358979323846;

double triangle(double x) {
    x = std::abs(x);
    return x < 1 ? 1 - x : 0;
}

double cubic(double x) {
    constexpr double a = -0.5;
    x = std::abs(x);
    if (x < 1) return ((a + 2) * x - (a + 3)) * x * x + 1;
    return x < 2 ? (((x - 5) * x + 8) * x - 4) * a : 0;
}

double sinc(double x) { return x == 0 ? 1 : std::sin(x * kPi) / (x * kPi); }

double lanczos(double x) { return x >= -3 && x < 3 ? sinc(x) * sinc(x / 3) : 0; }

// For each pixel of a line of the result: the first pixel that it reads, how many, and their weights.
struct Taps {
    int width = 0;  // weights of each pixel
    std::vector<int> first, count;
    std::vector<int32_t> weights;
};

Taps taps_of(int from, float begin, float end, int to, Interpolation interpolation) {
    double (*const filter)(double) = interpolation == Interpolation::Bilinear ? triangle : interpolation == Interpolation::Bicubic ? cubic : lanczos;
    const double reach = interpolation == Interpolation::Bilinear ? 1 : interpolation == Interpolation::Bicubic ? 2 : 3;
    const double scale = (double)(end - begin) / to, stretch = std::max(scale, 1.0), support = reach * stretch;
    Taps taps;
    taps.width = (int)std::ceil(support) * 2 + 1;
    taps.weights.resize((size_t)taps.width * (size_t)to);
    std::vector<double> row((size_t)taps.width);
    for (int i = 0; i < to; i++) {
        const double centre = begin + (i + 0.5) * scale;
        const int first = std::max(0, (int)(centre - support + 0.5)), last = std::min(from, (int)(centre + support + 0.5));
        double sum = 0;
        for (int x = first; x < last; x++) sum += row[(size_t)(x - first)] = filter((x - centre + 0.5) * (1.0 / stretch));
        for (int x = first; x < last; x++) {
            const double w = (sum != 0 ? row[(size_t)(x - first)] / sum : row[(size_t)(x - first)]) * (1 << kPrecision);
            taps.weights[(size_t)i * (size_t)taps.width + (size_t)(x - first)] = (int32_t)(w < 0 ? w - 0.5 : w + 0.5);
        }
        taps.first.push_back(first), taps.count.push_back(last - first);
    }
    return taps;
}

uint8_t rounded(int32_t sum) { return (uint8_t)std::clamp(sum >> kPrecision, 0, 255); }

Image along_rows(const Image &image, const Taps &taps) {
    Image out{(int)taps.first.size(), image.height, image.channels, {}};
    out.bytes.resize((size_t)out.width * (size_t)out.height * (size_t)out.channels);
    const size_t c = (size_t)image.channels;
    for (size_t y = 0; y < (size_t)image.height; y++)
        for (size_t x = 0; x < (size_t)out.width; x++) {
            const int32_t *weights = taps.weights.data() + x * (size_t)taps.width;
            const uint8_t *from = image.bytes.data() + (y * (size_t)image.width + (size_t)taps.first[x]) * c;
            for (size_t k = 0; k < c; k++) {
                int32_t sum = 1 << (kPrecision - 1);
                for (int i = 0; i < taps.count[x]; i++) sum += from[(size_t)i * c + k] * weights[i];
                out.bytes[(y * (size_t)out.width + x) * c + k] = rounded(sum);
            }
        }
    return out;
}

Image along_columns(const Image &image, const Taps &taps) {
    Image out{image.width, (int)taps.first.size(), image.channels, {}};
    const size_t row = (size_t)image.width * (size_t)image.channels;
    out.bytes.resize(row * (size_t)out.height);
    std::vector<int32_t> sums(row);
    for (size_t y = 0; y < (size_t)out.height; y++) {
        std::fill(sums.begin(), sums.end(), 1 << (kPrecision - 1));
        for (int i = 0; i < taps.count[y]; i++) {
            const uint8_t *from = image.bytes.data() + (size_t)(taps.first[y] + i) * row;
            const int32_t weight = taps.weights[y * (size_t)taps.width + (size_t)i];
            for (size_t x = 0; x < row; x++) sums[x] += from[x] * weight;
        }
        for (size_t x = 0; x < row; x++) out.bytes[y * row + x] = rounded(sums[x]);
    }
    return out;
}

Image nearest(const Image &image, int width, int height, const Region &region) {
    const double across = (double)(region.right - region.left) / width, down = (double)(region.bottom - region.top) / height;
    const size_t c = (size_t)image.channels;
    Image out{width, height, image.channels, std::vector<uint8_t>((size_t)width * (size_t)height * c)};
    std::vector<int> columns;
    double x = (double)region.left + across * 0.5, y = (double)region.top + down * 0.5;
    for (int i = 0; i < width; i++, x += across) columns.push_back(std::clamp((int)x, 0, image.width - 1));
    for (int j = 0; j < height; j++, y += down) {
        const size_t row = (size_t)std::clamp((int)y, 0, image.height - 1);
        for (size_t i = 0; i < (size_t)width; i++)
            std::copy_n(image.bytes.data() + (row * (size_t)image.width + (size_t)columns[i]) * c, c,
                        out.bytes.data() + ((size_t)j * (size_t)width + i) * c);
    }
    return out;
}

// Colours times their alpha, or that undone.
void weigh_colours(Image &image, bool undo) {
    const size_t c = (size_t)image.channels;
    for (size_t at = 0; at + c <= image.bytes.size(); at += c) {
        const int alpha = image.bytes[at + c - 1];
        for (size_t k = 0; k + 1 < c; k++) {
            uint8_t &value = image.bytes[at + k];
            const int product = value * alpha + 128;
            if (!undo) value = (uint8_t)((product + (product >> 8)) >> 8);
            else if (alpha != 0 && alpha != 255) value = (uint8_t)std::min(255 * value / alpha, 255);
        }
    }
}

}  // namespace

Image with_channels(const uint8_t *pixels, int width, int height, int channels, int wanted) {
    const size_t count = (size_t)width * (size_t)height, from = (size_t)channels, to = (size_t)wanted;
    Image out{width, height, wanted, std::vector<uint8_t>(count * to)};
    if (from == to) {
        std::copy_n(pixels, count * to, out.bytes.data());
        return out;
    }
    for (size_t i = 0; i < count; i++) {
        const uint8_t *p = pixels + i * from;
        uint8_t *q = out.bytes.data() + i * to;
        if (to >= 3)
            for (size_t k = 0; k < 3; k++) q[k] = p[from >= 3 ? k : 0];
        else q[0] = from >= 3 ? (uint8_t)((p[0] * 19595 + p[1] * 38470 + p[2] * 7471 + 0x8000) >> 16) : p[0];
        if (to % 2 == 0) q[to - 1] = from % 2 == 0 ? p[from - 1] : 255;
    }
    return out;
}

Image crop(const Image &image, int left, int top, int width, int height) {
    const size_t c = (size_t)image.channels;
    Image out{width, height, image.channels, std::vector<uint8_t>((size_t)width * (size_t)height * c)};
    for (int y = 0; y < height; y++)
        std::copy_n(image.bytes.data() + ((size_t)(top + y) * (size_t)image.width + (size_t)left) * c, (size_t)width * c,
                    out.bytes.data() + (size_t)y * (size_t)width * c);
    return out;
}

Image resize(const Image &image, int width, int height, const Region &region, Interpolation interpolation) {
    if (interpolation == Interpolation::Nearest) return nearest(image, width, height, region);
    Image work = image;
    const bool alpha = image.channels % 2 == 0;
    if (alpha) weigh_colours(work, false);
    if (width != work.width || region.left != 0 || region.right != (float)width)
        work = along_rows(work, taps_of(work.width, region.left, region.right, width, interpolation));
    if (height != work.height || region.top != 0 || region.bottom != (float)height)
        work = along_columns(work, taps_of(work.height, region.top, region.bottom, height, interpolation));
    if (alpha) weigh_colours(work, true);
    return work;
}

}  // namespace xnorpp
