#include "files.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>

#include "../core/program/json.h"

#if defined(_WIN32)
#define WIN32_LEAN_AND_MEAN
#include <windows.h>
#endif

namespace xnorpp {
namespace {

struct Close {
    void operator()(std::FILE *file) const { std::fclose(file); }
};

std::FILE *open(const char *path) {
#if defined(_WIN32)
    const int length = MultiByteToWideChar(CP_UTF8, 0, path, -1, nullptr, 0);
    if (length <= 0) return errno = EINVAL, nullptr;
    std::vector<wchar_t> wide((size_t)length);
    MultiByteToWideChar(CP_UTF8, 0, path, -1, wide.data(), length);
    return _wfopen(wide.data(), L"rb");
#else
    return std::fopen(path, "rb");
#endif
}

}  // namespace

std::vector<uint8_t> read_file(const char *path, uint64_t most) {
    const auto refuse = [&](const char *what) {
        const std::string name = is_utf8(path, std::strlen(path)) ? " " + quoted(path, 200) : "";
        return FileError("the file" + name + " cannot be " + what + " (" + std::strerror(errno) + ")");
    };
    const std::unique_ptr<std::FILE, Close> file(open(path));
    if (!file) throw refuse("opened");
    constexpr size_t kPart = 1 << 16;
    std::vector<uint8_t> bytes;
    if (std::fseek(file.get(), 0, SEEK_END) == 0) {  // a pipe has no end to go to, and is read piece by piece
        const long size = std::ftell(file.get());
        if (size > 0 && (uint64_t)size <= most) bytes.reserve((size_t)size + kPart);
        std::rewind(file.get());
    }
    for (size_t count = kPart; count == kPart;) {
        const size_t before = bytes.size();
        bytes.resize(before + kPart);
        count = std::fread(bytes.data() + before, 1, kPart, file.get());
        bytes.resize(before + count);
        if (std::ferror(file.get())) throw refuse("read");
        if (bytes.size() > most)
            throw LimitError("the file has more than the " + std::to_string(most) + " bytes that `file_bytes` of `limits` allows", "file_bytes");
    }
    return bytes;
}

}  // namespace xnorpp
