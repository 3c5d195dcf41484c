#include "operations.h"

#include <algorithm>
#include <cstring>

namespace xnorpp {
namespace {

constexpr int kF = (int)Kind::F32, kB = (int)Kind::Bits, kN = (int)Kind::F32 | (int)Kind::Int;
constexpr int64_t kLargestTap = 127 * 256 + 127;  // of a number that is two signed bytes

Shape channels_of(const Value &value) { return {value.channels()}; }

// floor((size + 2*padding - dilation*(kernel-1) - 1) / stride) + 1, which may be below 1.
int64_t window_size(int64_t size, int64_t kernel, int64_t stride, int64_t padding, int64_t dilation) {
    const int64_t room = size + 2 * padding - dilation * (kernel - 1) - 1;
    return room < 0 ? 0 : room / stride + 1;
}

// As `window_size`; ceil_mode rounds up, but drops a last window that would start in the padding.
int64_t pooled_size(int64_t size, int64_t kernel, int64_t stride, int64_t padding, bool ceil_mode) {
    if (!ceil_mode) return window_size(size, kernel, stride, padding, 1);
    const int64_t room = size + 2 * padding - kernel;
    if (room < 0) return 0;
    const int64_t count = (room + stride - 1) / stride + 1;
    return (count - 1) * stride >= size + padding ? count - 1 : count;
}

[[noreturn]] void no_fit(const Site &site, int64_t kh, int64_t kw) {
    const Shape &in = site.image();
    site.fail("a " + std::to_string(kh) + "x" + std::to_string(kw) + " window does not fit the " + std::to_string(in[1]) + "x" +
              std::to_string(in[2]) + " input");
}

std::pair<int64_t, int64_t> windows(const Site &site, int64_t kh, int64_t kw) {
    const Shape &in = site.image();
    const auto stride = site.pair("stride", 1), padding = site.pair("padding", 0), dilation = site.pair("dilation", 1);
    const int64_t h = window_size(in[1], kh, stride.first, padding.first, dilation.first);
    const int64_t w = window_size(in[2], kw, stride.second, padding.second, dilation.second);
    if (h < 1 || w < 1) no_fit(site, kh, kw);
    return {h, w};
}

int64_t groups_of(const Site &site) {
    const int64_t c = site.image()[0];
    const Json &groups = site.attr("groups");
    if (!groups.is(Json::Type::Integer) || groups.integer < 1 || groups.integer > c || c % groups.integer)
        site.fail("`groups` (=" + groups.brief() + ") must divide the " + std::to_string(c) + " input channels");
    return groups.integer;
}

// What a convolution over the bytes of an image is told: whole-numbered filters, all four tensors or none.
void byte_filters(const Site &site, const Value &out, int64_t kh, int64_t kw) {
    const char *roles[] = {"byte_weight", "byte_mean", "byte_rest", "byte_scale"};
    int given = 0;
    for (const char *role : roles) given += site.tensor(role) != nullptr;
    if (!given) return;
    if (given != 4 || site.version == 1)
        site.fail("`byte_weight`, `byte_mean`, `byte_rest` and `byte_scale` must be given together, in version 2");
    const int64_t o = out.channels(), c = site.image()[0];
    const Tensor &weight = *site.tensor("byte_weight"), &mean = *site.tensor("byte_mean"), &rest = *site.tensor("byte_rest");
    if (weight.encoding != Encoding::Int16 || weight.shape != Shape{o, c, kh, kw})
        site.fail("`byte_weight` must be int16 of shape " + text_of({o, c, kh, kw}));
    if (mean.encoding != Encoding::Int16 || mean.shape != Shape{o, kh, kw})
        site.fail("`byte_mean` must be int16 of shape " + text_of({o, kh, kw}));
    if (rest.encoding != Encoding::Int32 || rest.shape != Shape{o}) site.fail("`byte_rest` must be int32 of shape " + text_of({o}));
    site.real("byte_scale", {o});
    if (site.op.inputs[0] != 0 || groups_of(site) != 1 || site.pair("dilation", 1).second != 1)
        site.fail("`byte_weight` needs an operation on the input itself, in one group and without dilation along a row");
    const auto q = integers_of(weight), m = integers_of(mean), r = integers_of(rest);
    const size_t taps = (size_t)(kh * kw), inputs = taps * (size_t)c;
    for (size_t f = 0; f < (size_t)o; f++) {
        int64_t sum = 0, most = 0;
        for (size_t i = 0; i < inputs; i++) {
            const int64_t size = std::abs((int64_t)q[f * inputs + i]);
            sum += size, most = std::max(most, size);
        }
        for (size_t i = 0; i < taps; i++) {
            const int64_t size = std::abs((int64_t)m[f * taps + i]);
            sum += size, most = std::max(most, size);
        }
        if (most > kLargestTap || 255 * sum + std::abs((int64_t)r[f]) > INT32_MAX)
            site.fail("the whole-numbered filters of `byte_weight` are out of range");
    }
}

Value conv(const Site &site, bool packed, Kind kind) {
    const int64_t c = site.image()[0], groups = groups_of(site), fan = c / groups;
    const Tensor &weight = *site.tensor("weight");
    if (packed ? !weight.is_bits() : !weight.is_real())
        site.fail("`weight` is " + std::string(name_of(weight.encoding)) + "; " + (packed ? "one bit in U8" : "F32 or F16") + " is needed");
    if (weight.shape.size() != 4) site.fail("`weight` has shape " + text_of(weight.shape) + "; 4 axes are needed");
    const auto kernel = window_of(weight);
    const int64_t o = weight.shape[0], kh = kernel.first, kw = kernel.second;
    if (o % groups)
        site.fail("`weight` has " + std::to_string(o) + " filters; a positive multiple of `groups` (=" + std::to_string(groups) + ") is needed");
    const std::string named = "a " + std::to_string(kh) + "x" + std::to_string(kw) + " kernel";
    if (kh > kMostWindow || kw > kMostWindow) site.fail(named + " is out of range; 1 to " + std::to_string(kMostWindow) + " are allowed");
    if (fan * kh * kw > kMostTaps)
        site.fail(named + " over " + std::to_string(fan) + " channels has more than " + std::to_string(kMostTaps) +
                  " inputs, which a dot product may not have");
    const auto out = windows(site, kh, kw);
    const Value value{kind, {o, out.first, out.second}};
    if (packed) site.bits("weight", {o, kh, kw, fan});
    else site.real("weight", {o, fan, kh, kw});
    return value;
}

Value conv2d(const Site &site) {
    const Value out = conv(site, false, Kind::F32);
    if (site.tensor("bias")) site.real("bias", channels_of(out));
    const auto kernel = window_of(*site.tensor("weight"));
    byte_filters(site, out, kernel.first, kernel.second);
    return out;
}

Value binary_conv2d(const Site &site) {
    const Value out = conv(site, true, Kind::Int);
    const Json &pad = site.attr("pad_value");
    if (!pad.is(Json::Type::Integer) || pad.integer < -1 || pad.integer > 1)
        site.fail("`pad_value` (=" + pad.brief() + ") must be -1, 0 or 1");
    return out;
}

Value bitweight_conv2d(const Site &site) {
    const Value out = conv(site, true, Kind::F32);
    const auto kernel = window_of(*site.tensor("weight"));
    byte_filters(site, out, kernel.first, kernel.second);
    return out;
}

Value linear(const Site &site) {
    const int64_t i = site.vector();
    const Tensor &weight = *site.tensor("weight");
    if (weight.shape.size() != 2) site.fail("`weight` has shape " + text_of(weight.shape) + "; (o, " + std::to_string(i) + ") is needed");
    site.real("weight", {weight.shape[0], i});
    const Value out{Kind::F32, {weight.shape[0]}};
    if (site.tensor("bias")) site.real("bias", channels_of(out));
    return out;
}

template <Kind kind>
Value bit_linear(const Site &site) {
    const int64_t i = site.vector();
    const Tensor &weight = *site.tensor("weight");
    if (!weight.is_bits()) site.fail("`weight` is " + std::string(name_of(weight.encoding)) + "; one bit in U8 is needed");
    if (i > kMostTaps)
        site.fail("the input has " + std::to_string(i) + " channels; a dot product has at most " + std::to_string(kMostTaps));
    if (weight.shape.size() != 2)
        site.fail("`weight` has shape " + text_of(weight.shape) + "; (o, " + std::to_string((i + 7) / 8) + ") is needed");
    site.bits("weight", {weight.shape[0], i});
    return {kind, {weight.shape[0]}};
}

// The spatial factor: nothing, `row` and `col`, `map`, or `full`.
void spatial(const Site &site) {
    const bool row = site.tensor("row"), col = site.tensor("col"), map = site.tensor("map"), full = site.tensor("full");
    if (!row && !col && !map && !full) return;
    const Shape &in = site.image();
    if (row && col && !map && !full) site.real("row", {in[1]}), site.real("col", {in[2]});
    else if (map && !row && !col && !full) site.real("map", {in[1], in[2]});
    else if (full && !row && !col && !map) site.real("full", in);
    else site.fail("the spatial tensors must be `row` and `col`, or `map`, or `full`");
}

Value sign(const Site &site) {
    spatial(site);
    const Value &value = *site.inputs[0];
    if (site.tensor("threshold")) site.real("threshold", channels_of(value), true);
    if (const Tensor *flip = site.tensor("flip")) {
        bool right = flip->is_bytes() && flip->shape == channels_of(value);
        for (size_t i = 0; right && i < flip->bytes; i++) right = flip->data[i] <= 1;
        if (!right) site.fail("`flip` must be U8 0 or 1 of shape " + text_of(channels_of(value)));
    }
    return {Kind::Bits, value.shape};
}

Value affine(const Site &site) {
    spatial(site);
    const Value &value = *site.inputs[0];
    for (const char *role : {"mult", "add"})
        if (site.tensor(role)) site.real(role, channels_of(value));
    return {Kind::F32, value.shape};
}

Value prelu(const Site &site) {
    const Value &value = *site.inputs[0];
    const bool one = site.tensor("slope")->shape == Shape{1};
    site.real("slope", one ? Shape{1} : channels_of(value));
    return value;
}

bool is_float32(const Json &value) { return value.is_number() && std::abs(value.number()) <= 3.4028234663852886e38; }

Value hardtanh(const Site &site) {
    const Json &low = site.attr("min"), &high = site.attr("max");
    if (!is_float32(low) || !is_float32(high) || low.number() > high.number())
        site.fail("`min` (=" + low.brief() + ") and `max` (=" + high.brief() + ") must be numbers, min <= max");
    return *site.inputs[0];
}

Value same(const Site &site) { return *site.inputs[0]; }

Value add(const Site &site) {
    const Value &a = *site.inputs[0], &b = *site.inputs[1];
    if (a.shape != b.shape)
        site.fail("the inputs have shapes " + text_of(a.shape) + " and " + text_of(b.shape) + "; equal ones are needed");
    return a;
}

Value mul(const Site &site) {
    const Value &a = *site.inputs[0], &b = *site.inputs[1];
    Shape one = a.shape;
    one[0] = 1;
    if (b.shape != a.shape && b.shape != one)
        site.fail("the inputs have shapes " + text_of(a.shape) + " and " + text_of(b.shape) + "; equal, or one channel, is needed");
    return {Kind::F32, a.shape};
}

Value softmax(const Site &site) {
    site.vector();
    return *site.inputs[0];
}

Value flatten(const Site &site) { return {Kind::F32, {elements_of(site.inputs[0]->shape)}}; }

Value pool(const Site &site) {
    const Shape &in = site.image();
    const auto kernel = site.pair("kernel", 1), stride = site.pair("stride", 1), padding = site.pair("padding", 0);
    const bool ceil_mode = site.flag("ceil_mode");
    if (site.op.attrs.find("count_include_pad")) site.flag("count_include_pad");
    if (2 * padding.first > kernel.first || 2 * padding.second > kernel.second)
        site.fail("`padding` (=" + site.attr("padding").brief() + ") must be at most half of `kernel` (=" + site.attr("kernel").brief() + ")");
    const int64_t h = pooled_size(in[1], kernel.first, stride.first, padding.first, ceil_mode);
    const int64_t w = pooled_size(in[2], kernel.second, stride.second, padding.second, ceil_mode);
    if (h < 1 || w < 1 || in[1] + 2 * padding.first < kernel.first || in[2] + 2 * padding.second < kernel.second)
        no_fit(site, kernel.first, kernel.second);
    return {Kind::F32, {in[0], h, w}};
}

Value global_avg_pool(const Site &site) { return {Kind::F32, {site.image()[0], 1, 1}}; }

Value abs_mean(const Site &site) {
    Shape shape = site.inputs[0]->shape;
    shape[0] = 1;
    return {Kind::F32, shape};
}

Value box_filter(const Site &site) {
    const Shape &in = site.image();
    const auto kernel = site.pair("kernel", 1);
    const auto out = windows(site, kernel.first, kernel.second);
    return {Kind::F32, {in[0], out.first, out.second}};
}

Value pad2d(const Site &site) {
    const Shape &in = site.image();
    const Json &edges = site.attr("padding"), &value = site.attr("value");
    bool right = edges.is(Json::Type::List) && edges.items().size() == 6;
    for (size_t i = 0; right && i < 6; i++)
        right = edges.items()[i].is(Json::Type::Integer) && edges.items()[i].integer >= 0 && edges.items()[i].integer <= kMostExtent;
    if (!right) site.fail("`padding` (=" + edges.brief() + ") must be six integers, before and after c, h and w");
    if (!is_float32(value)) site.fail("`value` (=" + value.brief() + ") must be a number");
    const auto edge = [&](size_t i) { return edges.items()[i].integer; };
    return {Kind::F32, {in[0] + edge(0) + edge(1), in[1] + edge(2) + edge(3), in[2] + edge(4) + edge(5)}};
}

Value signs(const Site &site) { return {Kind::F32, site.inputs[0]->shape}; }

// Costs.
int64_t outputs_work(const Site &, const Value &out) { return elements_of(out.shape); }
int64_t inputs_work(const Site &site, const Value &) { return elements_of(site.inputs[0]->shape); }
int64_t filter_work(const Site &site, const Value &out) {
    return filter_products(*site.inputs[0], elements_of(out.shape), site.op, *site.tensor("weight"));
}
int64_t window_work(const Site &site, const Value &out) {
    const auto kernel = site.pair("kernel", 1);
    return elements_of(out.shape) * kernel.first * kernel.second;
}

}  // namespace

const std::vector<OperationRow> &operation_set() {
    using List = std::vector<const char *>;
    static const List geometry{"stride", "padding", "dilation", "groups"};
    static const List binary{"stride", "padding", "dilation", "groups", "pad_value"};
    static const List pools{"kernel", "stride", "padding", "ceil_mode"};
    static const List averages{"kernel", "stride", "padding", "ceil_mode", "count_include_pad"};
    static const List boxes{"kernel", "stride", "padding", "dilation"};
    static const List weight{"weight"}, bias{"bias"};
    static const List stem{"byte_weight", "byte_mean", "byte_rest", "byte_scale"};
    static const List stem_bias{"bias", "byte_weight", "byte_mean", "byte_rest", "byte_scale"};
    constexpr auto P = Fusion::Producer, W = Fusion::Pointwise;
    static const std::vector<OperationRow> rows = {
        {"conv2d", {kF}, conv2d, filter_work, P, geometry, weight, stem_bias},
        {"linear", {kF}, linear, filter_work, P, {}, weight, bias},
        {"binary_conv2d", {kB}, binary_conv2d, filter_work, P, binary, weight, {}},
        {"binary_linear", {kB}, bit_linear<Kind::Int>, filter_work, P, {}, weight, {}},
        {"bitweight_conv2d", {kF}, bitweight_conv2d, filter_work, P, geometry, weight, stem},
        {"bitweight_linear", {kF}, bit_linear<Kind::F32>, filter_work, P, {}, weight, {}},
        {"sign", {kN}, sign, outputs_work, Fusion::Sign, {}, {}, {"threshold", "flip", "row", "col", "map", "full"}},
        {"affine", {kN}, affine, outputs_work, W, {}, {}, {"mult", "add", "row", "col", "map", "full"}},
        {"relu", {kF}, same, outputs_work, W, {}, {}, {}},
        {"prelu", {kF}, prelu, outputs_work, W, {}, {"slope"}, {}},
        {"hardtanh", {kF}, hardtanh, outputs_work, W, {"min", "max"}, {}, {}},
        {"add", {kF, kF}, add, outputs_work, W, {}, {}, {}},
        {"mul", {kN, kF}, mul, outputs_work, W, {}, {}, {}},
        {"softmax", {kF}, softmax, outputs_work, P, {}, {}, {}},
        {"flatten", {kF}, flatten, outputs_work, Fusion::Flatten, {}, {}, {}},
        {"max_pool2d", {kF}, pool, window_work, P, pools, {}, {}},
        {"avg_pool2d", {kF}, pool, window_work, P, averages, {}, {}},
        {"global_avg_pool", {kF}, global_avg_pool, inputs_work, P, {}, {}, {}},
        {"abs_mean", {kF}, abs_mean, inputs_work, P, {}, {}, {}},
        {"box_filter", {kF}, box_filter, window_work, P, boxes, {}, {}},
        {"pad2d", {kF}, pad2d, outputs_work, P, {"padding", "value"}, {}, {}},
        {"signs", {kB}, signs, outputs_work, P, {}, {}, {}},
    };
    return rows;
}

const OperationRow *find_operation(const std::string &name) {
    for (const OperationRow &row : operation_set())
        if (name == row.name) return &row;
    return nullptr;
}

const Tensor *Site::tensor(const char *role) const {
    const int index = op.tensor(role);
    return index < 0 ? nullptr : &tensors[(size_t)index];
}

std::pair<int64_t, int64_t> Site::pair(const char *name, int64_t low) const {
    const Json &value = attr(name);
    bool right = value.is(Json::Type::List) && value.items().size() == 2;
    for (size_t i = 0; right && i < 2; i++)
        right = value.items()[i].is(Json::Type::Integer) && value.items()[i].integer >= low && value.items()[i].integer <= kMostWindow;
    if (!right)
        fail("`" + std::string(name) + "` (=" + value.brief() + ") must be two integers from " + std::to_string(low) + " to " +
             std::to_string(kMostWindow));
    return {value.items()[0].integer, value.items()[1].integer};
}

bool Site::flag(const char *name) const {
    const Json &value = attr(name);
    if (!value.is(Json::Type::Bool)) fail("`" + std::string(name) + "` (=" + value.brief() + ") must be true or false");
    return value.boolean;
}

const Shape &Site::image(size_t index) const {
    const Shape &shape = inputs[index]->shape;
    if (shape.size() != 3) fail("input " + std::to_string(index) + " has shape " + text_of(shape) + "; a (c, h, w) value is needed");
    return shape;
}

int64_t Site::vector(size_t index) const {
    const Shape &shape = inputs[index]->shape;
    if (shape.size() != 1) fail("input " + std::to_string(index) + " has shape " + text_of(shape) + "; a flat (c,) value is needed");
    return shape[0];
}

// A float32 or float16 tensor: its shape, no NaN, and no infinity unless allowed.
void Site::real(const char *role, const Shape &shape, bool infinite) const {
    const Tensor &t = *tensor(role);
    const std::string name = "`" + std::string(role) + "`";
    if (!t.is_real()) fail(name + " is " + name_of(t.encoding) + "; F32 or F16 is needed");
    if (t.shape != shape) fail(name + " has shape " + text_of(t.shape) + "; " + text_of(shape) + " is needed");
    bool bad = false;
    if (t.encoding == Encoding::Float32) {
        for (size_t i = 0; i < t.bytes; i += 4) {
            uint32_t bits;
            std::memcpy(&bits, t.data + i, 4);
            bits &= 0x7fffffffu;
            bad |= bits >= 0x7f800000u && !(infinite && bits == 0x7f800000u);
        }
    } else {
        for (size_t i = 0; i < t.bytes; i += 2) {
            const uint32_t bits = ((uint32_t)t.data[i] | (uint32_t)t.data[i + 1] << 8) & 0x7fffu;
            bad |= bits >= 0x7c00u && !(infinite && bits == 0x7c00u);
        }
    }
    if (bad) fail(name + " holds " + (infinite ? "NaN" : "NaN or infinite") + " numbers");
}

// A packed tensor: encoding, shape, and tail bits 0 (so that the tails of two operands never differ).
void Site::bits(const char *role, const Shape &shape) const {
    const Tensor &t = *tensor(role);
    const std::string name = "`" + std::string(role) + "`";
    const int64_t count = shape.back();
    Shape stored = shape;
    stored.back() = (count + 7) / 8;
    if (t.shape != stored) fail(name + " has shape " + text_of(t.shape) + "; " + text_of(stored) + " is needed");
    if (t.length >= 0 && t.length != count)
        fail(name + " has " + std::to_string(t.length) + " bits along its last axis; " + std::to_string(count) + " are needed");
    const size_t width = (size_t)stored.back();
    bool bad = false;
    if (count % 8)
        for (size_t i = width - 1; i < t.bytes; i += width) bad |= t.data[i] >> count % 8 != 0;
    if (bad) fail(name + " has bits set after its " + std::to_string(count) + " channels; tail bits must be 0");
}

std::pair<int64_t, int64_t> window_of(const Tensor &weight) {
    if (weight.shape.size() != 4) return {1, 1};
    return weight.is_bits() ? std::make_pair(weight.shape[1], weight.shape[2]) : std::make_pair(weight.shape[2], weight.shape[3]);
}

int64_t filter_products(const Value &source, int64_t outputs, const Operation &op, const Tensor &weight) {
    if (source.shape.size() == 1) return source.channels() * outputs;
    const auto kernel = window_of(weight);
    return outputs * (source.channels() / op.integer("groups")) * kernel.first * kernel.second;
}

namespace {

// Whether the keys are exactly the `wanted` ones (which are unique, and so are the keys).
bool same_keys(const std::vector<std::string> &keys, const std::vector<const char *> &wanted) {
    if (keys.size() != wanted.size()) return false;
    for (const char *name : wanted)
        if (std::find(keys.begin(), keys.end(), name) == keys.end()) return false;
    return true;
}

std::string listed(const std::vector<const char *> &names) {
    std::string out;
    for (const char *name : names) out += (out.empty() ? "" : ", ") + std::string(name);
    return "[" + out + "]";
}

}  // namespace

Value infer(const Site &site, int64_t &work) {
    const OperationRow &row = *site.op.row;
    if (site.inputs.size() != row.inputs.size())
        site.fail(std::to_string(site.inputs.size()) + " inputs given; " + std::to_string(row.inputs.size()) + " needed");
    for (size_t i = 0; i < row.inputs.size(); i++)
        if (!((int)site.inputs[i]->kind & row.inputs[i])) {
            std::string kinds;
            for (const Kind kind : {Kind::F32, Kind::Bits, Kind::Int})
                if ((int)kind & row.inputs[i]) kinds += (kinds.empty() ? "" : " or ") + std::string(name_of(kind));
            site.fail("input " + std::to_string(i) + " is " + name_of(site.inputs[i]->kind) + "; " + kinds + " is needed");
        }
    if (!same_keys(site.op.attrs.keys(), row.attrs)) {
        std::string given;
        for (const std::string &key : site.op.attrs.keys()) given += (given.empty() ? "" : ", ") + quoted(key, 20);
        if (given.size() > 200) given = std::to_string(site.op.attrs.keys().size()) + " keys";
        site.fail("attributes [" + given + "] given; " + listed(row.attrs) + " needed");
    }
    bool right = true;
    for (const char *role : row.required) right &= site.op.tensor(role) >= 0;
    for (const auto &item : site.op.tensors) {
        bool known = false;
        for (const auto *roles : {&row.required, &row.optional})
            for (const char *role : *roles) known |= item.first == role;
        right &= known;
    }
    if (!right) {
        std::string given;
        for (const auto &item : site.op.tensors) given += (given.empty() ? "" : ", ") + quoted(item.first, 20);
        if (given.size() > 200) given = std::to_string(site.op.tensors.size()) + " roles";
        site.fail("tensors [" + given + "] given; " + listed(row.required) + " needed, " + listed(row.optional) + " allowed");
    }
    Value out = row.infer(site);
    for (const int64_t size : out.shape)
        if (size < 1 || size > kMostExtent || elements_of(out.shape) > kMostElements)
            site.fail("its output of shape " + text_of(out.shape) + " is out of range");
    work += row.work(site, out);
    return out;
}

}  // namespace xnorpp
