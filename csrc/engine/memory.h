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
        const size_t whole = round_up(bytes + 2 * kLine, kLine);
        data_ = (char *)std::aligned_alloc(kLine, whole);
        if (!data_) throw std::bad_alloc();
        std::memset(data_, 0, whole);
    }
    Buffer(Buffer &&other) noexcept { swap(other); }
    Buffer &operator=(Buffer &&other) noexcept {
        swap(other);
        return *this;
    }
    Buffer(const Buffer &) = delete;
    Buffer &operator=(const Buffer &) = delete;
    ~Buffer() { std::free(data_); }

    template <class T = char>
    T *as() const {
        return (T *)data_;
    }
    size_t size() const { return bytes_; }

  private:
    void swap(Buffer &other) {
        std::swap(data_, other.data_);
        std::swap(bytes_, other.bytes_);
    }
    char *data_ = nullptr;
    size_t bytes_ = 0;
};

}  // namespace xnorpp
