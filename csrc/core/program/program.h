// A checked program: operations over values, with the kind and shape of each. `parse_program` checks everything that
// docs/format.md states, so that planners and engines may rely on it.
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "container.h"
#include "json.h"

namespace xnorpp {

enum class Kind : uint8_t { F32 = 1, Bits = 2, Int = 4 };  // a mask where several are allowed
const char *name_of(Kind kind);

struct Value {
    Kind kind = Kind::F32;
    Shape shape;  // without the batch axis; the first axis is the channels
    int64_t channels() const { return shape[0]; }
};
int64_t elements_of(const Shape &shape);  // at most 2**62, where more are the same

// A value of any rank as channels, rows and columns; the order of its elements stays.
struct Extent {
    int c, h, w;
    bool operator==(const Extent &other) const { return c == other.c && h == other.h && w == other.w; }
};
Extent extent_of(const Shape &shape);

// How the numbers of a tensor are stored. `Untyped`: the U8 of version 1, whose role decides between bits and bytes.
enum class Encoding : uint8_t { Float32, Float16, Bits, UInt8, Int8, Int16, Int32, Untyped };
const char *name_of(Encoding encoding);

struct Tensor {
    std::string name;
    Encoding encoding{};
    Shape shape;               // as stored
    int64_t length = -1;       // Bits: elements of the last axis, which is packed; -1 where the file does not state it
    const uint8_t *data = nullptr;
    size_t bytes = 0;
    Encoding used_as{};  // the encoding that its use shows; differs from `encoding` where that is Untyped
    int scale = -1;      // whole numbers that stand for real ones: the tensor with a factor for each index of the first axis
    const uint8_t *scale_data = nullptr;  // its memory
    Encoding scale_encoding{};

    bool is_real() const { return encoding == Encoding::Float32 || encoding == Encoding::Float16 || scale >= 0; }
    bool is_bits() const { return encoding == Encoding::Bits || encoding == Encoding::Untyped; }
    bool is_bytes() const { return encoding == Encoding::UInt8 || encoding == Encoding::Untyped; }
    int64_t elements() const { return elements_of(shape); }
};
// The numbers of a tensor in the layout it has (not for bits).
std::vector<float> floats_of(const Tensor &tensor);
std::vector<int32_t> integers_of(const Tensor &tensor);
Encoding encoding_of(Dtype dtype);  // of a tensor that is stored so; U8 is Untyped

struct OperationRow;

struct Operation {
    const OperationRow *row = nullptr;
    std::string op, name;
    std::vector<int> inputs;  // values
    int output = -1;          // value
    Json attrs;
    std::vector<std::pair<std::string, int>> tensors;  // role, tensor
    int tensor(const char *role) const {
        for (const auto &item : tensors)
            if (item.first == role) return item.second;
        return -1;
    }
    // Attributes that have been checked.
    int integer(const char *key) const { return (int)attrs.find(key)->integer; }
    int integer(const char *key, size_t index) const { return (int)attrs.find(key)->items()[index].integer; }
};

struct Output {
    std::string name;
    int value = -1;
};

// The value 0 is the input; operation i makes value i + 1.
struct Program {
    int version = 2;
    int opset = 1;  // that its file states
    Shape input_shape;     // -1 where any size is allowed
    Shape example_shape;   // sizes that the values below have
    std::vector<double> mean, std;
    std::vector<Operation> ops;
    std::vector<Output> outputs;
    std::vector<std::string> labels;
    bool has_labels = false;
    double temperature = 0;  // 0: none is given
    Json preprocess, meta;
    std::vector<Tensor> tensors;
    std::vector<std::string> names;  // of values
    std::vector<Value> values;
    int64_t work = 0;                // multiply-adds of one image

    bool is_output(int value) const {
        for (const Output &output : outputs)
            if (output.value == value) return true;
        return false;
    }
    const Tensor *tensor(const Operation &op, const char *role) const {
        const int index = op.tensor(role);
        return index < 0 ? nullptr : &tensors[(size_t)index];
    }
    bool variable() const { return input_shape != example_shape; }
};

// What the table `tensors` of a file of version 2 states; of a program in the making, scales alone; and what U8 tensors are by
// their use.
void parse_encodings(Program &p, const Json &table);
void parse_scales(Program &p, const Json &table);
void show_encodings(Program &p, bool draft);

// From the program's JSON and its stored tensors, which are looked up by name; `tensors` point to memory that must outlive
// the program. `draft`: a program in the making, whose U8 tensors get their encodings from their use.
Program parse_program(const std::string &text, int version, std::vector<Tensor> tensors, bool draft = false);
// From a whole file.
Program read_program(const uint8_t *bytes, size_t size, uint64_t file_bytes = kMostFile);
// The same program for an input of another size, checked again; only where its file allows any size.
Program with_input(const Program &program, const Shape &shape);

// Multiply-adds of one image, counted as engines do them: filters in blocks of 32, floats in pixels of 16 channels, one-bit
// products in words of 32.
uint64_t image_work(const Program &program);
// Refuses a program that no engine can run within the limits; an engine counts its own layout exactly.
void check_limits(const Program &program, const Limits &limits);

}  // namespace xnorpp
