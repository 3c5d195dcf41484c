// Memory aligned to a cache line, with a line of slack behind it (vector loads may look at whole vectors).
#pragma once
#include <cstdlib>
#include <cstring>
#include <new>
#include <utility>

#include "../cpu/kernels.h"

namespace xnorpp {

class Buffer {
  public:
    Buffer() = default;
    explicit Buffer(size_t bytes) : bytes_(bytes) {
        memory_ = (char *)std::calloc(bytes + 3 * kLine, 1);  // large blocks are zero pages until they are used
        if (!memory_) throw std::bad_alloc();
        data_ = (char *)round_up((size_t)memory_, kLine);
    }
    Buffer(Buffer &&other) noexcept { swap(other); }
    Buffer &operator=(Buffer &&other) noexcept {
        swap(other);
        return *this;
    }
    Buffer(const Buffer &) = delete;
    Buffer &operator=(const Buffer &) = delete;
    ~Buffer() { std::free(memory_); }

    template <class T = char>
    T *as() const {
        return (T *)data_;
    }
    size_t size() const { return bytes_; }

  private:
    void swap(Buffer &other) {
        std::swap(memory_, other.memory_);
        std::swap(data_, other.data_);
        std::swap(bytes_, other.bytes_);
    }
    char *memory_ = nullptr, *data_ = nullptr;
    size_t bytes_ = 0;
};

}  // namespace xnorpp
