#include "prepare.h"

#include <algorithm>
#include <cfloat>
#include <cmath>

namespace xnorpp {
namespace {

constexpr int64_t kMostSide = 1 << 13, kMostPixels = 1 << 26;

[[noreturn]] void refuse(const std::string &what) { throw Error("input: " + what); }

struct Size {
    int height = 0, width = 0;
    bool pair = false;
};

Size size_of(const Json &value, const char *name) {
    const std::string given = "`" + std::string(name) + "` (=" + value.brief() + ")";
    const bool pair = value.is(Json::Type::List);
    std::vector<Json> sides{value};
    if (pair) sides = value.items();
    if (sides.size() != (pair ? 2u : 1u)) refuse(given + " must be an integer, or a pair of them (height, width)");
    for (const Json &side : sides) {
        if (!side.is(Json::Type::Integer)) refuse(given + " must be an integer, or a pair of them (height, width)");
        if (side.integer < 1) refuse(given + " must be at least 1");
        if (side.integer > kMostSide) refuse(given + " must be at most " + std::to_string(kMostSide));
    }
    return {(int)sides.front().integer, (int)sides.back().integer, pair};
}

std::vector<float> numbers_of(const Json &value, const char *name, size_t channels) {
    const std::string given = "`" + std::string(name) + "` (=" + value.brief() + ")";
    if (!value.is(Json::Type::List)) refuse(given + " must be a list of numbers, one per channel");
    std::vector<float> out;
    for (const Json &item : value.items()) {
        if (!item.is_number()) refuse(given + " must be a list of numbers, one per channel");
        if (!(std::abs(item.number()) <= (double)FLT_MAX)) refuse(given + " must be finite numbers, also in float32");
        out.push_back((float)item.number());
    }
    if (out.size() != channels) refuse(given + " must have `channels` (=" + std::to_string(channels) + ") values");
    return out;
}

std::vector<float> singles(const std::vector<double> &values) { return {values.begin(), values.end()}; }

size_t choice(const Json *value, const char *name, std::initializer_list<const char *> allowed, size_t missing) {
    if (!value) return missing;
    std::string list;
    size_t index = 0;
    for (const char *one : allowed) {
        if (value->is(Json::Type::Text) && value->text() == one) return index;
        list += (index == 0 ? "" : index + 1 == allowed.size() ? " or " : ", ") + ("\"" + std::string(one) + "\"");
        index++;
    }
    refuse("`" + std::string(name) + "` (=" + value->brief() + ") must be " + list);
}

int whole(double value) { return (int)std::nearbyint(value); }  // half to even

}  // namespace

std::optional<Preparation> preparation_of(const Program &program) {
    const Shape &shape = program.example_shape;
    const bool stated = program.preprocess.is(Json::Type::Object);
    if (shape.size() != 3 || (!stated && shape[0] > 4)) return std::nullopt;
    const Json &given = program.preprocess;
    if (stated)
        for (const std::string &key : given.keys()) {
            static const char *const known[] = {"resize", "crop", "mean", "std", "channels", "aspect", "interpolation"};
            if (std::find(std::begin(known), std::end(known), key) == std::end(known))
                refuse("`preprocess` has the key " + quoted(key, 40) + "; allowed are resize, crop, mean, std, channels, aspect, interpolation");
        }
    const auto find = [&](const char *key) { return stated ? given.find(key) : nullptr; };
    Preparation out;
    const Json *channels = find("channels"), *resize = find("resize"), *crop = find("crop");
    if (channels && !channels->is(Json::Type::Integer)) refuse("`channels` (=" + channels->brief() + ") must be an integer, 1, 2, 3 or 4");
    const int64_t count = channels ? channels->integer : shape[0];
    if (count < 1 || count > 4) refuse("`channels` (=" + std::to_string(count) + ") must be an integer, 1, 2, 3 or 4");
    out.channels = (int)count;
    // A size of its own, where the input allows any; otherwise the input's.
    Shape fixed = shape;
    if (resize || crop) fixed = program.input_shape;
    Size to{(int)shape[1], (int)shape[2], shape[1] != shape[2]};
    if (crop) to = size_of(*crop, "crop");
    else if (resize && (fixed[1] < 1 || fixed[2] < 1)) to = size_of(*resize, "resize");
    const Size from = resize ? size_of(*resize, "resize") : to;
    out.height = to.height, out.width = to.width;
    out.resize_height = from.height, out.resize_width = from.width, out.one_number = !from.pair;
    const Json *mean = find("mean"), *std = find("std");
    out.mean = mean ? numbers_of(*mean, "mean", (size_t)count) : singles(program.mean);
    out.std = std ? numbers_of(*std, "std", (size_t)count) : singles(program.std);
    for (const float value : out.std)
        if (!(value >= FLT_MIN)) refuse("`std` must be positive in float32, at least 2^-126");
    out.keeps_aspect = choice(find("aspect"), "aspect", {"squash", "keep"}, 0) == 1;
    out.interpolation = (Interpolation)choice(find("interpolation"), "interpolation", {"nearest", "bilinear", "bicubic", "lanczos"}, 1);
    if (to.height > from.height || to.width > from.width)
        refuse("`crop` (=" + (crop ? crop->brief() : text_of({to.height, to.width})) + ") must be at least 1 and at most `resize` (=" +
               (resize ? resize->brief() : text_of({from.height, from.width})) + ")");
    const Shape made{out.channels, out.height, out.width};
    for (size_t i = 0; i < 3; i++)
        if (fixed[i] > 0 && fixed[i] != made[i])
            refuse("`preprocess` makes an input of shape " + text_of(made) + ", and the network's is " + text_of(fixed) +
                   "; `crop` and `channels` must match it");
    return out;
}

std::vector<uint8_t> Preparation::apply(const uint8_t *pixels, int columns, int rows, int given) const {
    Image image = with_channels(pixels, columns, rows, given, channels);
    if (!keeps_aspect && one_number) {
        // The crop alone, from the region of the image that it comes from.
        const int side = resize_height, top = (side - height) / 2, left = (side - width) / 2;
        if (columns == side && rows == side) return crop(image, left, top, width, height).bytes;
        const auto at = [&](int n, int extent) { return (float)((double)n * extent / side); };
        const Region region{at(left, columns), at(top, rows), at(left + width, columns), at(top + height, rows)};
        return resize(image, width, height, region, interpolation).bytes;
    }
    int64_t tall = resize_height, wide = resize_width;
    if (keeps_aspect && one_number) {
        const int64_t longer = (int64_t)((double)((int64_t)resize_height * std::max(rows, columns)) / std::min(rows, columns));
        (columns <= rows ? tall : wide) = longer;
    } else if (keeps_aspect) {
        const double ratio = std::min((double)rows / resize_height, (double)columns / resize_width);
        tall = whole(rows / ratio), wide = whole(columns / ratio);
    }
    if (tall * wide > kMostPixels)
        throw Error("the image (=" + std::to_string(columns) + "x" + std::to_string(rows) + ") would be resized to " + std::to_string(wide) +
                    "x" + std::to_string(tall) + ", which is more than 67,108,864 pixels; crop it first");
    if (columns != wide || rows != tall)
        image = resize(image, (int)wide, (int)tall, {0, 0, (float)columns, (float)rows}, interpolation);
    return crop(image, whole((double)(wide - width) / 2), whole((double)(tall - height) / 2), width, height).bytes;
}

std::vector<float> Preparation::normalise(const std::vector<uint8_t> &bytes) const {
    std::vector<float> out(bytes.size());
    const size_t c = (size_t)channels, pixels = bytes.size() / c;
    for (size_t k = 0; k < c; k++)
        for (size_t i = 0; i < pixels; i++) out[k * pixels + i] = ((float)bytes[i * c + k] / 255.0f - mean[k]) / std[k];
    return out;
}

void to_probabilities(const Program &program, float *outputs, size_t classes) {
    const Operation &last = program.ops[(size_t)program.outputs[0].value - 1];
    const float temperature = program.temperature > 0 ? (float)program.temperature : 1.0f;
    if (last.op == "softmax") {
        if (temperature == 1.0f) return;
        for (size_t i = 0; i < classes; i++) outputs[i] = std::log(std::max(outputs[i], FLT_MIN));
    }
    if (temperature != 1.0f)
        for (size_t i = 0; i < classes; i++) outputs[i] /= temperature;
    float most = outputs[0], sum = 0;
    for (size_t i = 1; i < classes; i++) most = std::max(most, outputs[i]);
    for (size_t i = 0; i < classes; i++) sum += outputs[i] = std::exp(outputs[i] - most);
    for (size_t i = 0; i < classes; i++) outputs[i] /= sum;
}

}  // namespace xnorpp
