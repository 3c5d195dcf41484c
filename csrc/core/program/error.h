// The one error of the core: a file, a program or a setting that cannot be used. Its text is one sentence without a line
// break, valid UTF-8 and bounded in length, whatever bytes a file holds.
#pragma once
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

namespace xnorpp {

struct Error : std::runtime_error {
    using std::runtime_error::runtime_error;
};

// A program that needs more than its caller allows. `limit` names the number of Limits that it exceeds; how to raise it is for
// whoever hands the message on to add, because every language sets limits in its own way.
struct LimitError : Error {
    LimitError(const std::string &message, const char *limit) : Error(message), limit(limit) {}
    const char *limit;
};

using Shape = std::vector<int64_t>;

// A name between quotes, at most `most` characters of it, control characters escaped.
std::string quoted(const std::string &text, size_t most = 80);
// "(3, 6, 6)".
std::string text_of(const Shape &shape);

}  // namespace xnorpp
