// The one thing that the C library asks of a file system.
#pragma once
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

namespace xnorpp {

struct FileError : std::runtime_error {
    using std::runtime_error::runtime_error;
};

// The bytes of a file; `path` is UTF-8. A LimitError where it has more than `most`, a FileError where it cannot be read.
std::vector<uint8_t> read_file(const char *path, uint64_t most);

}  // namespace xnorpp
