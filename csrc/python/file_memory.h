// The bytes of a file that a program was read from. An engine has the filters again, in the order that its kernels read, and few
// programs are asked for their tensors once they run. So the pages of a large tensor are given back to the system when it has
// been packed, and its numbers are taken from the engine's panels for whoever reads it after all: no file has to stay in place.
// Where the system takes no pages back, the bytes stay. Callers see to it that one thread at a time is in here.
#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <set>

#include "../core/conv_build.h"
#if defined(__linux__) && !defined(__SANITIZE_ADDRESS__)  // which watches the heap alone
#include <unistd.h>
#define XNORPP_RELEASES_PAGES
#endif

namespace xnorpp {

class FileMemory : public Releases {
  public:
#if defined(XNORPP_RELEASES_PAGES)
    explicit FileMemory(size_t bytes) : bytes_(bytes), mapped_(round_up(bytes + 1, (size_t)sysconf(_SC_PAGESIZE))) {
        void *block = mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (block == MAP_FAILED) throw std::bad_alloc();
        data_ = (uint8_t *)block;
#if defined(MADV_NOHUGEPAGE)
        (void)madvise(data_, mapped_, MADV_NOHUGEPAGE);  // a part of a large page is not given back at once
#endif
    }
    ~FileMemory() { munmap(data_, mapped_); }
#else
    explicit FileMemory(size_t bytes) : bytes_(bytes), block_(bytes), data_(block_.as<uint8_t>()) {}
#endif
    FileMemory(const FileMemory &) = delete;
    FileMemory &operator=(const FileMemory &) = delete;

    uint8_t *data() const { return data_; }
    size_t size() const { return bytes_; }
    size_t released() const { return released_.size(); }  // tensors

    // Unless somebody holds the tensor.
    bool release(const uint8_t *stored, size_t bytes, Restore restore) override {
#if defined(XNORPP_RELEASES_PAGES)
        const size_t begin = (size_t)(stored - data_);
        if (bytes < kLeast || held_.count(begin)) return false;
        released_[begin] = std::move(restore);
        return true;
#else
        (void)stored, (void)bytes, (void)restore;
        return false;
#endif
    }
    void drop(const uint8_t *from, size_t bytes) override {  // the whole pages
#if defined(XNORPP_RELEASES_PAGES)
        const size_t page = (size_t)sysconf(_SC_PAGESIZE), begin = (size_t)(from - data_);
        const size_t first = round_up(begin, page), end = (begin + bytes) / page * page;
        if (first < end) (void)madvise(data_ + first, end - first, MADV_DONTNEED);  // else they stay, and are written again too
#else
        (void)from, (void)bytes;
#endif
    }
    // A tensor that stays from now on: there are views of it.
    void hold(size_t begin) {
        held_.insert(begin);
        const auto found = released_.find(begin);
        if (found != released_.end()) write_again(found);
    }
    // Everything, for an engine that packs it.
    void restore() {
        while (!released_.empty()) write_again(released_.begin());
    }

  private:
    static constexpr size_t kLeast = (size_t)1 << 14;  // below it is not worth its entry
    using Released = std::map<size_t, Restore>;        // by their places in the file
    void write_again(Released::iterator which) {
        which->second(data_ + which->first);  // may find no memory: then it is still released
        released_.erase(which);
    }

    size_t bytes_;
#if defined(XNORPP_RELEASES_PAGES)
    size_t mapped_;
#else
    Buffer block_;
#endif
    uint8_t *data_ = nullptr;
    Released released_;
    std::set<size_t> held_;
};

}  // namespace xnorpp
