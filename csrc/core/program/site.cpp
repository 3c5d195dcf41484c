// What the rows of the operation set have in common: one operation is checked against its row.
#include <algorithm>
#include <cmath>
#include <cmath>
#include <cstring>

#include "operations.h"

namespace xnorpp {
namespace {

constexpr float kLargestScale = 1e30f;  // whose products with 16-bit numbers are finite

}  // namespace

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

int64_t Site::integer(const char *name, int64_t low, int64_t high) const {
    const Json &value = attr(name);
    if (!value.is(Json::Type::Integer) || value.integer < low || value.integer > high)
        fail("`" + std::string(name) + "` (=" + value.brief() + ") must be an integer from " + std::to_string(low) + " to " + std::to_string(high));
    return value.integer;
}

std::vector<int64_t> Site::integers(const char *name, int64_t low, int64_t high) const {
    const Json &value = attr(name);
    std::vector<int64_t> out;
    bool right = value.is(Json::Type::List) && value.items().size() <= 16;
    for (size_t i = 0; right && i < value.items().size(); i++) {
        const Json &item = value.items()[i];
        right = item.is(Json::Type::Integer) && item.integer >= low && item.integer <= high;
        out.push_back(item.integer);
    }
    if (!right)
        fail("`" + std::string(name) + "` (=" + value.brief() + ") must be a list of integers from " + std::to_string(low) + " to " + std::to_string(high));
    return out;
}

double Site::number(const char *name) const {
    const Json &value = attr(name);
    if (!value.is_number() || !(std::abs(value.number()) <= 3.4028234663852886e38))
        fail("`" + std::string(name) + "` (=" + value.brief() + ") must be a number that float32 has");
    return value.number();
}

size_t Site::axis(const char *name, size_t index) const {
    return (size_t)integer(name, 0, (int64_t)inputs[index]->shape.size() - 1);
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

// A float32 or float16 tensor, or whole numbers with a scale: its shape, no NaN, and no infinity unless allowed.
void Site::real(const char *role, const Shape &shape, bool infinite) const {
    const Tensor &t = *tensor(role);
    const std::string name = "`" + std::string(role) + "`";
    if (!t.is_real()) fail(name + " is " + name_of(t.encoding) + "; F32 or F16 is needed");
    if (t.shape != shape) fail(name + " has shape " + text_of(t.shape) + "; " + text_of(shape) + " is needed");
    bool bad = false;
    if (t.scale >= 0) {
        for (const float value : floats_of(tensors[(size_t)t.scale])) bad |= !(std::abs(value) <= kLargestScale);
    } else if (t.encoding == Encoding::Float32) {
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

Spread spread_of(const Shape &operand, const Shape &result) {
    const Extent a = extent_of(operand), b = extent_of(result);
    if (a == b) return Spread::Each;
    const bool pixels = a.h == b.h && a.w == b.w, none = a.h == 1 && a.w == 1;
    if (a.c == 1 && none) return Spread::One;
    if (a.c == 1 && pixels) return Spread::Pixel;
    return a.c == b.c && none ? Spread::Channel : Spread::Other;
}

int64_t work_of_row(const Program &p, const Operation &op) {
    std::vector<const Value *> inputs;
    for (const int input : op.inputs) inputs.push_back(&p.values[(size_t)input]);
    return op.row->work(Site{op.name, op, inputs, p.tensors, p.version}, p.values[(size_t)op.output]);
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

// Whether the keys are the row's attributes, with any of those that may be absent (all are unique, and so are the keys).
bool right_keys(const std::vector<std::string> &keys, const OperationRow &row) {
    size_t known = 0;
    for (const char *name : row.attrs)
        if (std::find(keys.begin(), keys.end(), name) == keys.end()) return false;
    for (const char *name : row.more_attrs) known += std::find(keys.begin(), keys.end(), name) != keys.end();
    return keys.size() == row.attrs.size() + known;
}

std::string listed(const std::vector<const char *> &names) {
    std::string out;
    for (const char *name : names) out += (out.empty() ? "" : ", ") + std::string(name);
    return "[" + out + "]";
}

}  // namespace

Value infer(const Site &site, int64_t &work) {
    const OperationRow &row = *site.op.row;
    if (row.many ? site.inputs.size() < row.inputs.size() || site.inputs.size() > kMostInputs : site.inputs.size() != row.inputs.size())
        site.fail(std::to_string(site.inputs.size()) + " inputs given; " + (row.many ? "at least " : "") + std::to_string(row.inputs.size()) +
                  (row.many ? " and at most " + std::to_string(kMostInputs) : "") + " needed");
    for (size_t i = 0; i < site.inputs.size(); i++) {
        const int mask = row.inputs[std::min(i, row.inputs.size() - 1)];
        if (!((int)site.inputs[i]->kind & mask)) {
            std::string kinds;
            for (const Kind kind : {Kind::F32, Kind::Bits, Kind::Int})
                if ((int)kind & mask) kinds += (kinds.empty() ? "" : " or ") + std::string(name_of(kind));
            site.fail("input " + std::to_string(i) + " is " + name_of(site.inputs[i]->kind) + "; " + kinds + " is needed");
        }
    }
    if (!right_keys(site.op.attrs.keys(), row)) {
        std::string given;
        for (const std::string &key : site.op.attrs.keys()) given += (given.empty() ? "" : ", ") + quoted(key, 20);
        if (given.size() > 200) given = std::to_string(site.op.attrs.keys().size()) + " keys";
        site.fail("attributes [" + given + "] given; " + listed(row.attrs) + " needed" +
                  (row.more_attrs.empty() ? "" : ", " + listed(row.more_attrs) + " allowed"));
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
