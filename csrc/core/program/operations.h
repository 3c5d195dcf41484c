// The operation set: one row for each operation with its inputs, attributes, tensors, shape rule, cost, how a plan may fuse
// it, and its function on the CPU. The rows are in ../operations, one file for each family; CONTRIBUTING.md lists what else an
// operation needs.
#pragma once
#include "program.h"

namespace xnorpp {

constexpr int64_t kMostExtent = 1 << 24;    // of one axis of a value
constexpr int64_t kMostElements = 1 << 27;  // of one value of one image
constexpr int64_t kMostWindow = 1024;       // kernel, stride, dilation, padding
constexpr size_t kMostInputs = 256;         // of one operation
constexpr int64_t kMostTaps = 1 << 22;      // inputs of one filter: a dot product is exact in float32

// One operation in its place: what a shape rule sees.
struct Site {
    const std::string &where;
    const Operation &op;
    const std::vector<const Value *> &inputs;
    const std::vector<Tensor> &tensors;
    int version;

    [[noreturn]] void fail(const std::string &message) const { throw Error(where + ": " + message); }
    const Tensor *tensor(const char *role) const;
    const Json &attr(const char *name) const { return *op.attrs.find(name); }
    int64_t integer(const char *name, int64_t low, int64_t high) const;
    double number(const char *name) const;  // that a float32 can be
    size_t axis(const char *name, size_t index = 0) const;  // of an input
    std::vector<int64_t> integers(const char *name, int64_t low, int64_t high) const;  // a list of at most 16
    std::pair<int64_t, int64_t> pair(const char *name, int64_t low) const;
    bool flag(const char *name) const;
    const Shape &image(size_t index = 0) const;
    int64_t vector(size_t index = 0) const;
    void real(const char *role, const Shape &shape, bool infinite = false) const;
    void bits(const char *role, const Shape &shape) const;  // the last axis is the packed one
};

// How a plan treats an operation. Producer: opens a step. Pointwise: joins the step that makes its input. Reshape: only gives
// its input another name where channels, rows and columns stay, and opens a step elsewhere.
enum class Fusion : uint8_t { Producer, Pointwise, Sign, Reshape };

struct PlainSite;
struct PlainStep;

struct OperationRow {
    const char *name;
    std::vector<int> inputs;  // the mask of kinds that each may have
    Value (*infer)(const Site &);
    int64_t (*work)(const Site &, const Value &);
    Fusion fusion;
    std::vector<const char *> attrs, required, optional;  // attributes; tensors that must be there, and that may
    int since = 1;                                        // the operation set that has it first
    PlainStep (*make)(const PlainSite &) = nullptr;       // its function in plain C++ (../plain/plain.h); null: the engine has its own
    std::vector<const char *> more_attrs{};               // that may be absent; given, they need set 2
    bool many = false;                                    // any number of inputs more, of the last one's kinds
    size_t shapes = 0;                                    // of its last inputs it only takes the shape: no engine reads them
    // Inputs whose numbers it reads.
    size_t read(size_t given) const { return given - shapes; }
};

const std::vector<OperationRow> &operation_set();
const OperationRow *find_operation(const std::string &name);
int newest_set();  // that has an operation

// Functions of one number that every engine computes with the same operations (curves.cuh), by their number there.
const std::vector<const char *> &curves();
int curve_of(const std::string &op);  // -1: none of them

// How the second operand of an operation lies on a result: one number for each of its elements, or shared by the channels of
// a pixel, by the pixels of a channel, or by all; Other where it is none of these.
enum class Spread : uint8_t { Each, Pixel, Channel, One, Other };
Spread spread_of(const Shape &operand, const Shape &result);

// Checks one operation (its row is set) and returns the value it makes; adds its cost to `work`.
Value infer(const Site &site, int64_t &work);

// The cost of an operation of a checked program, by its row.
int64_t work_of_row(const Program &program, const Operation &op);
// Multiply-adds of a convolution or linear layer that makes so many outputs.
int64_t filter_products(const Value &source, int64_t outputs, const Operation &op, const Tensor &weight);
// Rows and columns of a convolution's filters.
std::pair<int64_t, int64_t> window_of(const Tensor &weight);

}  // namespace xnorpp
