// A strict JSON reader for untrusted text: RFC 8259, valid UTF-8, no duplicate key, no number out of range, bounded depth
// and number of values. What it accepts is a tree of `Json`.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "error.h"

namespace xnorpp {

// Small, because a text of a few megabytes may hold a million of them; what texts, lists and objects hold is shared by copies.
struct Json {
    enum class Type : uint8_t { Null, Bool, Integer, Real, Text, List, Object };
    struct Body {
        std::string text;
        std::vector<std::string> keys;
        std::vector<Json> items;
    };

    Type type = Type::Null;
    bool boolean = false;
    union {
        int64_t integer = 0;
        double real;
    };
    std::shared_ptr<const Body> body;

    const std::string &text() const { return inner().text; }
    const std::vector<std::string> &keys() const { return inner().keys; }  // of an object, in the order of the text
    const std::vector<Json> &items() const { return inner().items; }       // of a list, or the values of an object

    bool is(Type other) const { return type == other; }
    bool is_number() const { return type == Type::Integer || type == Type::Real; }
    double number() const { return type == Type::Integer ? (double)integer : real; }
    // The value of a key, or null where an object lacks it.
    const Json *find(const char *key) const;
    // The value as JSON text, at most `most` characters of it, for messages.
    std::string brief(size_t most = 40) const;

    static constexpr int kMostDepth = 64;
    static constexpr size_t kMostValues = (size_t)1 << 20;

  private:
    const Body &inner() const;
};

// `where` names the text in an error: "the header".
Json parse_json(const char *text, size_t length, const char *where);

// Whether bytes are valid UTF-8 (no surrogates, no overlong forms), and how many characters they are.
bool is_utf8(const char *text, size_t length);
size_t characters(const std::string &text);

// Checked access to what a file holds; `where` begins the message. It is a view, because newer compilers take a reference to
// a temporary text for what the result refers to, and warn.
extern const Json kNull, kEmpty;
constexpr size_t kMostName = 1024;  // characters
const Json &at(const Json &object, const char *key, const Json &missing = kNull);
const Json &object(const Json &value, std::string_view where);
const Json &list(const Json &value, std::string_view where);
const std::string &text(const Json &value, std::string_view where);
// From version 2 on nothing is passed over: a key that a reader does not know may change what a file means.
void only(const Json &value, std::initializer_list<const char *> known, const std::string &where, int version);

}  // namespace xnorpp
