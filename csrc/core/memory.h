// Memory aligned to a cache line, with a line of slack behind it (vector loads may look at whole vectors). Large blocks ask
// for large pages, where the system has them: a call walks through megabytes, more than a core finds the pages of at once.
#pragma once
#include <cstdlib>
#include <cstring>
#include <new>
#include <string>
#include <utility>
#if defined(__linux__)
#include <sys/mman.h>
#endif

#include "../kernels/kernels.h"
#include "program/error.h"

namespace xnorpp {

// How many bytes an engine may take. Whoever is about to allocate by a file's wish asks here first.
class Budget {
  public:
    explicit Budget(size_t most) : most_(most) {}
    void take(size_t bytes) {
        if (bytes > most_ - taken_)
            throw LimitError("this program cannot be run here: it needs more than the " + std::to_string(most_) +
                                 " bytes that `memory_bytes` of `limits` allows",
                             "memory_bytes");
        taken_ += bytes;
    }

  private:
    size_t most_, taken_ = 0;
};

class Buffer {
  public:
    Buffer() = default;
    explicit Buffer(size_t bytes) : bytes_(bytes) {
#if defined(__linux__) && defined(MADV_HUGEPAGE) && !defined(__SANITIZE_ADDRESS__)  // which watches the heap alone
        if (bytes >= kLargePage) {
            mapped_ = round_up(bytes + 3 * kLine, kLargePage) + kLargePage;
            void *block = mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
            if (block == MAP_FAILED) throw std::bad_alloc();
            memory_ = (char *)block, data_ = (char *)round_up((size_t)block, kLargePage);
            // Whole ones only, so that the end takes no more than it needs; without them it is memory all the same.
            (void)madvise(data_, bytes / kLargePage * kLargePage, MADV_HUGEPAGE);
            return;
        }
#endif
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
    ~Buffer() {
#if defined(__linux__)
        if (mapped_) {
            munmap(memory_, mapped_);
            return;
        }
#endif
        std::free(memory_);
    }

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
        std::swap(mapped_, other.mapped_);
    }
    static constexpr size_t kLargePage = (size_t)2 << 20;
    char *memory_ = nullptr, *data_ = nullptr;
    size_t bytes_ = 0, mapped_ = 0;  // mapped: of a block that is not from the heap
};

}  // namespace xnorpp
