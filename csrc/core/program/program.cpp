#include "program.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "operations.h"

namespace xnorpp {
namespace {

constexpr size_t kMostOps = 1 << 12, kMostAxes = 8;
constexpr uint64_t kMostNumbers = (uint64_t)1 << 30;  // of all values of one image
constexpr int64_t kMostWork = (int64_t)1 << 42;       // multiply-adds of one image

// One number per channel; from version 2 on `missing` where they are left out.
std::vector<double> numbers(const Json &source, const char *name, size_t channels, double missing, int version) {
    const Json *value = source.find(name);
    if (!value && version > 1) return std::vector<double>(channels, missing);
    const std::string where = "input `" + std::string(name) + "`";
    std::vector<double> out;
    bool right = list(value ? *value : kNull, where).items().size() == channels;
    for (const Json &item : value->items()) {
        right &= item.is_number() && std::abs(item.number()) < 1e30;
        out.push_back(item.number());
    }
    if (!right) throw Error(where + " must be " + std::to_string(channels) + " finite numbers, one per channel");
    return out;
}

void parse_input(Program &p, const Json &source) {
    only(source, {"shape", "example_shape", "mean", "std", "preprocess"}, "`input`", p.version);
    const Json &shape = list(at(source, "shape"), "input `shape`");
    const size_t axes = shape.items().size();
    const std::string wanted = p.version == 1 ? "three positive integers (c, h, w)" : "1 to 8 positive integers, of (c, h, w) h and w may be null";
    bool right = p.version == 1 ? axes == 3 : axes >= 1 && axes <= kMostAxes;
    bool any = false;
    for (size_t i = 0; right && i < axes; i++) {
        const Json &size = shape.items()[i];
        const bool open = p.version > 1 && axes == 3 && i > 0 && size.is(Json::Type::Null);
        right = open || (size.is(Json::Type::Integer) && size.integer >= 1 && size.integer <= kMostExtent);
        any |= open;
        p.input_shape.push_back(open ? -1 : size.integer);
    }
    if (!right) throw Error("input: `shape` (=" + shape.brief() + ") must be " + wanted);
    p.example_shape = p.input_shape;
    const Json *example = p.version > 1 ? source.find("example_shape") : nullptr;
    if (any != (example != nullptr)) throw Error("input: `example_shape` must be given where `shape` has null, and only there");
    if (any) {
        list(*example, "input `example_shape`");
        right = example->items().size() == axes;
        for (size_t i = 0; right && i < axes; i++) {
            const Json &size = example->items()[i];
            right = size.is(Json::Type::Integer) && size.integer >= 1 && size.integer <= kMostExtent;
            right = right && (p.input_shape[i] < 0 || p.input_shape[i] == size.integer);
            if (right) p.example_shape[i] = size.integer;
        }
        if (!right) throw Error("input: `example_shape` (=" + example->brief() + ") must be positive integers that agree with `shape`");
    }
    const Json &preprocess = at(source, "preprocess");
    p.preprocess = preprocess.is(Json::Type::Null) ? preprocess : object(preprocess, "input `preprocess`");
    if (elements_of(p.example_shape) > kMostElements) throw Error("input: `shape` (=" + text_of(p.example_shape) + ") is out of range");
    const size_t channels = (size_t)p.input_shape[0];
    p.mean = numbers(source, "mean", channels, 0, p.version), p.std = numbers(source, "std", channels, 1, p.version);
    for (const double value : p.std)
        if (!((float)value > 0)) throw Error("input: `std` must be positive in float32");
}

// Operations with the names of their values and tensors replaced by numbers.
void parse_ops(Program &p, const Json &rows) {
    if (list(rows, "`ops`").items().empty() || rows.items().size() > kMostOps)
        throw Error("a program has 1 to " + std::to_string(kMostOps) + " operations; this one has " + std::to_string(rows.items().size()));
    std::map<std::string, int> values{{"input", 0}}, tensors;
    for (size_t i = 0; i < p.tensors.size(); i++) tensors[p.tensors[i].name] = (int)i;
    for (size_t index = 0; index < rows.items().size(); index++) {
        std::string where = "operation " + std::to_string(index);
        const Json &row = object(rows.items()[index], where);
        only(row, {"op", "name", "inputs", "output", "attrs", "tensors"}, where, p.version);
        Operation op;
        op.op = text(at(row, "op"), where + ": `op`"), op.name = text(at(row, "name"), where + ": `name`");
        where += " (" + quoted(op.op, 40) + " " + quoted(op.name) + ")";
        op.attrs = object(at(row, "attrs", kEmpty), where + ": `attrs`");
        for (const Json &input : list(at(row, "inputs"), where + ": `inputs`").items()) {
            const auto found = values.find(text(input, where + ": an input"));
            if (found == values.end()) throw Error(where + ": value " + quoted(input.text()) + " is read before it is made");
            op.inputs.push_back(found->second);
        }
        const std::string &output = text(at(row, "output"), where + ": `output`");
        if (output.empty()) throw Error(where + ": a value's name has 1 to " + std::to_string(kMostName) + " characters");
        op.output = (int)index + 1;
        if (!values.emplace(output, op.output).second) throw Error(where + ": value " + quoted(output) + " is made twice");
        p.names.push_back(output);
        const Json &roles = object(at(row, "tensors", kEmpty), where + ": `tensors`");
        for (size_t i = 0; i < roles.keys().size(); i++) {
            const auto found = tensors.find(text(roles.items()[i], where + ": tensor " + quoted(roles.keys()[i], 40)));
            if (found == tensors.end()) throw Error(where + ": tensor " + quoted(roles.items()[i].text()) + " is not in the file");
            op.tensors.emplace_back(roles.keys()[i], found->second);
        }
        op.row = find_operation(op.op);
        bool known = op.row && op.row->since <= p.opset;
        if (known && p.opset < 2)
            for (const char *name : op.row->more_attrs) known &= !op.attrs.find(name);
        if (!known) throw Error(where + ": operation " + quoted(op.op, 40) + " is unknown to operation set " + std::to_string(p.opset));
        p.ops.push_back(std::move(op));
    }
}

int value_named(const Program &p, const std::string &name) {
    const auto found = std::find(p.names.begin() + 1, p.names.end(), name);
    if (found == p.names.end()) throw Error("the output value " + quoted(name) + " is never made");
    return (int)(found - p.names.begin());
}

void parse_outputs(Program &p, const Json &body) {
    if (p.version == 1) {
        const std::string &name = text(at(body, "output"), "`output`");
        p.outputs.push_back({"output", value_named(p, name)});
    } else {
        const Json &rows = list(at(body, "outputs"), "`outputs`");
        if (rows.items().empty() || rows.items().size() > 256) throw Error("`outputs` must be 1 to 256 outputs");
        for (const Json &row : rows.items()) {
            only(object(row, "an output"), {"name", "value"}, "an output", 2);
            const std::string &name = text(at(row, "name"), "an output's `name`");
            for (const Output &other : p.outputs)
                if (other.name == name) throw Error("two outputs have the name " + quoted(name));
            if (name.empty()) throw Error("an output's `name` is empty");
            p.outputs.push_back({name, value_named(p, text(at(row, "value"), "an output's `value`"))});
        }
        const Json &temperature = at(body, "temperature");
        if (!temperature.is(Json::Type::Null)) {
            p.temperature = temperature.is_number() ? temperature.number() : 0;
            if (!(p.temperature > 1e-6 && p.temperature < 1e6))
                throw Error("`temperature` (=" + temperature.brief() + ") must be a positive number, or null");
        }
    }
    const Json &labels = at(body, "labels");
    p.has_labels = !labels.is(Json::Type::Null);
    if (p.has_labels)
        for (const Json &label : list(labels, "`labels`").items()) p.labels.push_back(text(label, "a label"));
}

constexpr const char *kBound = "` is bound to one size, but the input's `shape` allows any";

// Whether each `value` fits an image of twice the height and width too: one that has numbers of its own for places of the image
// does not. What else does not fit there may be right at other sizes.
void check_values(const Program &p) {
    Shape shape = p.example_shape;
    for (size_t i = 0; i < shape.size(); i++) shape[i] *= p.input_shape[i] < 0 ? 2 : 1;
    std::vector<Value> values(1, {Kind::F32, shape});
    for (size_t i = 0; i < p.ops.size(); i++) {
        const Operation &op = p.ops[i];
        std::vector<const Value *> inputs;
        for (const int input : op.inputs) inputs.push_back(&values[(size_t)input]);
        int64_t work = 0;
        const std::string where = "operation " + std::to_string(i) + " (" + quoted(op.op, 40) + " " + quoted(op.name) + ")";
        try {
            values.push_back(infer(Site{where, op, inputs, p.tensors, p.version}, work));
        } catch (const Error &) {
            if (op.tensor("value") >= 0) throw Error(where + ": `value" + kBound);
            return;
        }
    }
}

// Kinds and shapes of every value for an input of `shape`, and what all of it costs.
void check(Program &p) {
    p.values.assign(1, {Kind::F32, p.example_shape});
    std::vector<bool> used(p.tensors.size());
    uint64_t total = (uint64_t)elements_of(p.example_shape), constants = 0;
    p.work = 0;
    std::vector<int> readers;  // of the input
    int bytes = -1;            // the operation with whole-numbered filters
    for (size_t i = 0; i < p.ops.size(); i++) {
        const Operation &op = p.ops[i];
        const std::string where = "operation " + std::to_string(i) + " (" + quoted(op.op, 40) + " " + quoted(op.name) + ")";
        std::vector<const Value *> inputs;
        for (const int input : op.inputs) {
            if (input == 0 && inputs.size() < op.row->read(op.inputs.size())) readers.push_back((int)i);
            inputs.push_back(&p.values[(size_t)input]);
        }
        for (const auto &item : op.tensors) {
            const Tensor &tensor = p.tensors[(size_t)item.second];
            used[(size_t)item.second] = true;
            constants += tensor.bytes;
            if (tensor.scale >= 0) used[(size_t)tensor.scale] = true;
            const bool bound = item.first == "row" || item.first == "col" || item.first == "map" || item.first == "full";
            if (p.variable() && bound) throw Error(where + ": `" + item.first + kBound);
        }
        if (constants > kMostFile) throw Error(where + ": the operations' tensors have more than " + std::to_string(kMostFile) + " bytes");
        if (op.tensor("byte_weight") >= 0) bytes = (int)i;
        Value value = infer(Site{where, op, inputs, p.tensors, p.version}, p.work);
        total += (uint64_t)elements_of(value.shape);
        p.values.push_back(std::move(value));
        if (total > kMostNumbers || p.work > kMostWork)
            throw Error(where + ": the program needs more memory or work than this format allows");
    }
    if (bytes >= 0 && readers != std::vector<int>{bytes})
        throw Error("operation " + std::to_string(bytes) + ": `byte_weight` needs that nothing else reads the input");
    for (const Output &output : p.outputs) {
        const Value &value = p.values[(size_t)output.value];
        if (value.kind != Kind::F32) throw Error("the output " + quoted(output.name) + " is " + name_of(value.kind) + "; f32 is needed");
    }
    for (size_t i = 0; i < used.size(); i++)
        if (!used[i]) throw Error("tensor " + quoted(p.tensors[i].name) + " is used by no operation");
    const int64_t first = p.values[(size_t)p.outputs[0].value].channels();
    if (p.has_labels && (int64_t)p.labels.size() != first)
        throw Error(std::to_string(p.labels.size()) + " labels for " + std::to_string(first) + " outputs");
}

}  // namespace

const char *name_of(Kind kind) { return kind == Kind::F32 ? "f32" : kind == Kind::Bits ? "bits" : "int"; }

int64_t elements_of(const Shape &shape) {
    constexpr int64_t most = (int64_t)1 << 62;
    int64_t count = 1;
    for (const int64_t size : shape) count = size > 0 && count > most / size ? most : count * size;
    return count;
}

Extent extent_of(const Shape &shape) {
    int64_t rows = 1;
    for (size_t i = 1; i + 1 < shape.size(); i++) rows *= shape[i];
    return {(int)shape[0], (int)rows, shape.size() > 1 ? (int)shape.back() : 1};
}

Program parse_program(const std::string &source, int version, std::vector<Tensor> tensors, bool draft) {
    const Json body = parse_json(source.data(), source.size(), "`program`");
    object(body, "`program`");
    Program p;
    p.version = version;
    p.tensors = std::move(tensors);
    if (version > 1) {
        only(body, {"opset", "input", "tensors", "ops", "outputs", "labels", "temperature", "meta"}, "`program`", version);
        const Json &opset = at(body, "opset");
        if (!opset.is(Json::Type::Integer) || opset.integer < 1 || opset.integer > newest_set())
            throw Error("operation set " + opset.brief() + " is unknown; this reader knows " + std::to_string(newest_set()) +
                        ", a newer release of xnorpp may know it");
        p.opset = (int)opset.integer;
        if (!draft) parse_encodings(p, at(body, "tensors"));
        else if (const Json *scales = body.find("tensors")) parse_scales(p, *scales);
    }
    parse_input(p, object(at(body, "input"), "`input`"));
    p.names.push_back("input");
    parse_ops(p, at(body, "ops"));
    parse_outputs(p, body);
    p.meta = object(at(body, "meta", kEmpty), "`meta`");
    check(p);
    if (p.variable()) check_values(p);
    show_encodings(p, draft);
    return p;
}

Program read_program(const uint8_t *bytes, size_t size, uint64_t file_bytes) {
    const Container file = read_container(bytes, size, file_bytes);
    std::vector<Tensor> tensors;
    for (const StoredTensor &stored : file.tensors) {
        Tensor tensor;
        tensor.name = stored.name, tensor.shape = stored.shape;
        tensor.data = file.data + stored.begin, tensor.bytes = stored.end - stored.begin;
        tensor.encoding = encoding_of(stored.dtype);
        tensors.push_back(std::move(tensor));
    }
    return parse_program(file.program, file.version, std::move(tensors));
}

Program with_input(const Program &program, const Shape &shape) {
    bool fits = shape.size() == program.input_shape.size();
    for (size_t i = 0; fits && i < shape.size(); i++)
        fits = shape[i] >= 1 && shape[i] <= kMostExtent && (program.input_shape[i] < 0 || program.input_shape[i] == shape[i]);
    if (!fits) throw Error("an input of shape " + text_of(shape) + " does not fit this program, which takes " + text_of(program.input_shape));
    Program other = program;
    other.example_shape = shape;
    if (elements_of(shape) > kMostElements) throw Error("an input of shape " + text_of(shape) + " is out of range");
    check(other);
    return other;
}

namespace {

uint64_t padded(int64_t count, int64_t block) { return (uint64_t)((count + block - 1) / block * block); }

uint64_t padded_floats(const Value &value) {  // numbers of a value whose pixels have whole blocks of 16 channels
    return (uint64_t)(elements_of(value.shape) / value.channels()) * padded(value.channels(), 16);
}

uint64_t work_of(const Program &p, const Operation &op) {
    const Value &source = p.values[(size_t)op.inputs[0]], &out = p.values[(size_t)op.output];
    if (op.row->since > 1) {
        uint64_t most = std::max(padded_floats(out), (uint64_t)work_of_row(p, op));
        for (const int input : op.inputs) most = std::max(most, padded_floats(p.values[(size_t)input]));
        return most;
    }
    const Tensor *weight = p.tensor(op, "weight");
    if (!weight) {
        const uint64_t window = op.attrs.find("kernel") ? (uint64_t)op.integer("kernel", 0) * (uint64_t)op.integer("kernel", 1) : 1;
        return std::max(padded_floats(source), padded_floats(out) * window);
    }
    const int64_t groups = op.attrs.find("groups") ? op.integer("groups") : 1;
    const uint64_t filters = (uint64_t)groups * padded(out.channels() / groups, 32);
    const int64_t fan = source.channels() / groups;
    const uint64_t inputs = (uint64_t)(source.kind == Kind::Bits ? (fan + 31) / 32 : fan);
    const auto kernel = window_of(*weight);
    return (uint64_t)(elements_of(out.shape) / out.channels()) * filters * (uint64_t)(kernel.first * kernel.second) * inputs;
}

// An operation's tensors as an engine computes with them, and `row` and `col` multiplied out.
uint64_t constant_bytes(const Program &p, const Operation &op) {
    const bool unpacked = op.inputs[0] >= 0 && p.values[(size_t)op.inputs[0]].kind == Kind::F32;  // eight float32 for a byte
    uint64_t total = 0;
    for (const auto &item : op.tensors) {
        const Tensor &tensor = p.tensors[(size_t)item.second];
        total += tensor.is_real() ? 4 * (uint64_t)tensor.elements() : tensor.bytes * (unpacked && item.first == "weight" ? 32 : 1);
    }
    const Tensor *row = p.tensor(op, "row"), *col = p.tensor(op, "col");
    return total + (row && col ? 4 * (uint64_t)(row->elements() * col->elements()) : 0);
}

}  // namespace

uint64_t image_work(const Program &program) {
    uint64_t total = 0;
    for (const Operation &op : program.ops) total += work_of(program, op);
    return total;
}

void check_limits(const Program &program, const Limits &limits) {
    const uint64_t work = image_work(program);
    if (work > limits.multiply_adds)
        throw beyond_limit(std::to_string(work) + " multiply-adds for one image", "multiply_adds", limits.multiply_adds);
    uint64_t bytes = 0;
    for (const Operation &op : program.ops) bytes += constant_bytes(program, op);
    if (bytes > limits.memory_bytes) throw beyond_limit("at least " + std::to_string(bytes) + " bytes of memory", "memory_bytes", limits.memory_bytes);
}

}  // namespace xnorpp
