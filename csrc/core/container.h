// The file around a program: a safetensors container whose lengths, offsets, names and checksum have been verified.
// docs/format.md describes it.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "error.h"

namespace xnorpp {

// What a file may ask for. A hostile file cannot make a reader use more than a small multiple of its own size, nor an
// engine more than this.
struct Limits {
    uint64_t file = (uint64_t)1 << 32;    // bytes of a file
    uint64_t memory = (uint64_t)1 << 32;  // bytes of all values of one image, 4 for each number
    uint64_t work = (uint64_t)1 << 42;    // multiply-adds of one image
    int64_t channels = 1 << 24;           // of the input
};

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

Container read_container(const uint8_t *bytes, size_t size, const Limits &limits = {});

}  // namespace xnorpp
