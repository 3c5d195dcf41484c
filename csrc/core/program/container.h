// The file around a program: a safetensors container whose lengths, offsets, names and checksum have been verified.
// docs/format.md describes it.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "error.h"

namespace xnorpp {

constexpr uint64_t kMostFile = (uint64_t)1 << 32;

// What a model may take from the machine. The format bounds every number in a file, but generously: a few hundred bytes can
// describe values of gigabytes. An engine therefore compares what a program needs with these limits before it allocates.
struct Limits {
    uint64_t file_bytes = kMostFile;
    uint64_t memory_bytes = (uint64_t)1 << 31;   // weights as an engine lays them out, constants, working memory of one call
    uint64_t multiply_adds = (uint64_t)1 << 38;  // of one image; 32 one-bit products count as one
};

// "this program needs ..., and `name` of `limits` allows ...".
LimitError beyond_limit(const std::string &needs, const char *name, uint64_t limit);

enum class Dtype : uint8_t { F32, F16, U8, I8, I16, I32 };
size_t bytes_of(Dtype dtype);
const char *name_of(Dtype dtype);

struct StoredTensor {
    std::string name;
    Dtype dtype{};
    Shape shape;
    size_t begin = 0, end = 0;  // in the data
};

struct Container {
    int version = 0;
    std::string program;                // JSON
    std::vector<StoredTensor> tensors;  // in the order of their bytes
    const uint8_t *data = nullptr;      // points into the bytes that were read
    size_t size = 0;
};

constexpr size_t kMostHeader = (size_t)1 << 24;

Container read_container(const uint8_t *bytes, size_t size, uint64_t file_bytes = kMostFile);

}  // namespace xnorpp
