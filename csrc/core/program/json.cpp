#include "json.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <numeric>

namespace xnorpp {
namespace {

class Reader {
  public:
    Reader(const char *text, size_t length, const char *where) : at_(text), end_(text + length), where_(where) {}

    Json document() {
        Json value = any(0);
        space();
        if (at_ != end_) fail();
        return value;
    }

  private:
    [[noreturn]] void fail(const std::string &what = "is not valid JSON") { throw Error(where_ + (" " + what)); }

    void space() {
        while (at_ != end_ && (*at_ == ' ' || *at_ == '\n' || *at_ == '\r' || *at_ == '\t')) at_++;
    }
    bool take(char c) {
        if (at_ == end_ || *at_ != c) return false;
        at_++;
        return true;
    }
    void word(const char *text) {
        const size_t length = std::strlen(text);
        if ((size_t)(end_ - at_) < length || std::memcmp(at_, text, length) != 0) fail();
        at_ += length;
    }

    Json any(int depth) {
        if (depth > Json::kMostDepth) fail("nests deeper than " + std::to_string(Json::kMostDepth) + " levels");
        if (++count_ > Json::kMostValues) fail("has more than " + std::to_string(Json::kMostValues) + " values");
        space();
        if (at_ == end_) fail();
        Json value;
        switch (*at_) {
            case '{': object(value, depth); break;
            case '[': list(value, depth); break;
            case '"': {
                auto body = std::make_shared<Json::Body>();
                string(body->text);
                value.type = Json::Type::Text, value.body = std::move(body);
                break;
            }
            case 't': word("true"), value.type = Json::Type::Bool, value.boolean = true; break;
            case 'f': word("false"), value.type = Json::Type::Bool; break;
            case 'n': word("null"); break;
            default: number(value);
        }
        return value;
    }

    void object(Json &value, int depth) {
        value.type = Json::Type::Object;
        at_++;
        space();
        if (take('}')) return;
        auto body = std::make_shared<Json::Body>();
        do {
            space();
            if (at_ == end_ || *at_ != '"') fail();
            body->keys.emplace_back();
            string(body->keys.back());
            space();
            if (!take(':')) fail();
            body->items.push_back(any(depth + 1));
            space();
        } while (take(','));
        if (!take('}')) fail();
        const auto &keys = body->keys;
        std::vector<uint32_t> order(keys.size());
        std::iota(order.begin(), order.end(), 0u);
        std::sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) { return keys[a] < keys[b]; });
        for (size_t i = 1; i < order.size(); i++)
            if (keys[order[i]] == keys[order[i - 1]]) fail("has a key twice");
        value.body = std::move(body);
    }

    void list(Json &value, int depth) {
        value.type = Json::Type::List;
        at_++;
        space();
        if (take(']')) return;
        auto body = std::make_shared<Json::Body>();
        do {
            body->items.push_back(any(depth + 1));
            space();
        } while (take(','));
        if (!take(']')) fail();
        value.body = std::move(body);
    }

    uint32_t hex() {
        if (end_ - at_ < 4) fail();
        uint32_t code = 0;
        for (int i = 0; i < 4; i++) {
            const char c = *at_++;
            const int digit = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
            if (digit < 0) fail();
            code = code * 16 + (uint32_t)digit;
        }
        return code;
    }
    void unicode(std::string &out) {
        uint32_t code = hex();
        if (code >= 0xD800 && code < 0xDC00) {  // the first half of a pair
            if (!take('\\') || !take('u')) fail("is not valid Unicode");
            const uint32_t low = hex();
            if (low < 0xDC00 || low > 0xDFFF) fail("is not valid Unicode");
            code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
        } else if (code >= 0xDC00 && code <= 0xDFFF) {
            fail("is not valid Unicode");
        }
        if (code < 0x80) {
            out += (char)code;
        } else if (code < 0x800) {
            out += (char)(0xC0 | code >> 6), out += (char)(0x80 | (code & 63));
        } else if (code < 0x10000) {
            out += (char)(0xE0 | code >> 12), out += (char)(0x80 | (code >> 6 & 63)), out += (char)(0x80 | (code & 63));
        } else {
            out += (char)(0xF0 | code >> 18), out += (char)(0x80 | (code >> 12 & 63));
            out += (char)(0x80 | (code >> 6 & 63)), out += (char)(0x80 | (code & 63));
        }
    }
    void string(std::string &out) {
        at_++;
        for (;;) {
            const char *run = at_;
            while (at_ != end_ && *at_ != '"' && *at_ != '\\' && (unsigned char)*at_ >= 0x20) at_++;
            out.append(run, (size_t)(at_ - run));
            if (at_ == end_ || (unsigned char)*at_ < 0x20) fail();
            if (*at_++ == '"') return;
            if (at_ == end_) fail();
            switch (*at_++) {
                case '"': out += '"'; break;
                case '\\': out += '\\'; break;
                case '/': out += '/'; break;
                case 'b': out += '\b'; break;
                case 'f': out += '\f'; break;
                case 'n': out += '\n'; break;
                case 'r': out += '\r'; break;
                case 't': out += '\t'; break;
                case 'u': unicode(out); break;
                default: fail();
            }
        }
    }

    bool digits() {
        const char *first = at_;
        while (at_ != end_ && *at_ >= '0' && *at_ <= '9') at_++;
        return at_ != first;
    }
    void number(Json &value) {
        const char *first = at_;
        take('-');
        const bool zero = at_ != end_ && *at_ == '0';
        const char *whole = at_;
        if (!digits() || (zero && at_ - whole > 1)) fail();
        bool real = false;
        if (take('.')) real = true, digits() ? void() : fail();
        if (at_ != end_ && (*at_ == 'e' || *at_ == 'E')) {
            real = true, at_++;
            if (at_ != end_ && (*at_ == '+' || *at_ == '-')) at_++;
            if (!digits()) fail();
        }
        value.type = real ? Json::Type::Real : Json::Type::Integer;
        bool right = true;
        if (!real) {
            const auto result = std::from_chars(first, at_, value.integer);
            right = result.ec == std::errc() && result.ptr == at_;
        } else {
            right = real_number(first, value.real);
        }
        if (!right) fail("holds a number that is out of range");
    }
    // Correctly rounded; a number that is too small becomes 0, one that is too large is refused.
    bool real_number(const char *first, double &value) {
#if defined(__cpp_lib_to_chars)
        const auto result = std::from_chars(first, at_, value);
        if (result.ec == std::errc::result_out_of_range) {
            value = std::strtod(std::string(first, at_).c_str(), nullptr);  // exact digits do not matter at 0 and infinity
            return std::abs(value) < 1;
        }
        return result.ec == std::errc() && result.ptr == at_;
#else  // a standard library without it has one locale
        value = std::strtod(std::string(first, at_).c_str(), nullptr);
        return std::isfinite(value);
#endif
    }

    const char *at_, *end_;
    const std::string where_;
    size_t count_ = 0;
};

}  // namespace

bool is_utf8(const char *text, size_t length) {
    const auto *s = (const unsigned char *)text;
    for (size_t i = 0; i < length;) {
        const unsigned char first = s[i];
        if (first < 0x80) {
            i++;
            continue;
        }
        const size_t more = first >= 0xC2 && first < 0xE0 ? 1 : first >= 0xE0 && first < 0xF0 ? 2 : first >= 0xF0 && first < 0xF5 ? 3 : 0;
        if (!more || length - i <= more) return false;
        for (size_t j = 1; j <= more; j++)
            if ((s[i + j] & 0xC0) != 0x80) return false;
        const unsigned char second = s[i + 1];
        if ((first == 0xE0 && second < 0xA0) || (first == 0xED && second >= 0xA0) || (first == 0xF0 && second < 0x90) ||
            (first == 0xF4 && second >= 0x90))
            return false;
        i += more + 1;
    }
    return true;
}

size_t characters(const std::string &text) {
    size_t count = 0;
    for (const char c : text) count += ((unsigned char)c & 0xC0) != 0x80;
    return count;
}

Json parse_json(const char *text, size_t length, const char *where) {
    if (!is_utf8(text, length)) throw Error(std::string(where) + " is not valid UTF-8");
    return Reader(text, length, where).document();
}

const Json::Body &Json::inner() const {
    static const Body empty;
    return body ? *body : empty;
}

const Json *Json::find(const char *key) const {
    for (size_t i = 0; i < keys().size(); i++)
        if (keys()[i] == key) return &items()[i];
    return nullptr;
}

std::string Json::brief(size_t most) const {
    std::string out;
    switch (type) {
        case Type::Null: out = "null"; break;
        case Type::Bool: out = boolean ? "true" : "false"; break;
        case Type::Integer: out = std::to_string(integer); break;
        case Type::Real: {
            char buffer[40];
            std::snprintf(buffer, sizeof buffer, "%.17g", real);
            out = buffer;
            break;
        }
        case Type::Text: return quoted(text(), most);
        case Type::List:
            for (size_t i = 0; i < items().size() && out.size() < most; i++) out += (i ? ", " : "") + items()[i].brief(most);
            out = "[" + out + "]";
            break;
        case Type::Object:
            for (size_t i = 0; i < items().size() && out.size() < most; i++)
                out += (i ? ", " : "") + quoted(keys()[i], most) + ": " + items()[i].brief(most);
            out = "{" + out + "}";
            break;
    }
    if (out.size() <= most) return out;
    size_t cut = most;
    while (cut && ((unsigned char)out[cut] & 0xC0) == 0x80) cut--;
    return out.substr(0, cut) + "...";
}

std::string quoted(const std::string &text, size_t most) {
    std::string out = "'";
    size_t count = 0;
    for (const char c : text) {
        count += ((unsigned char)c & 0xC0) != 0x80;
        if (count > most) {
            out += "...";
            break;
        }
        if ((unsigned char)c < 0x20 || c == 0x7f) {
            char buffer[8];
            std::snprintf(buffer, sizeof buffer, "\\x%02x", (unsigned)(unsigned char)c);
            out += buffer;
        } else {
            out += c;
        }
    }
    return out + "'";
}

std::string text_of(const Shape &shape) {
    std::string out = "(";
    for (size_t i = 0; i < shape.size(); i++) out += (i ? ", " : "") + std::to_string(shape[i]);
    return out + (shape.size() == 1 ? ",)" : ")");
}

const Json kNull, kEmpty = [] {
    Json value;
    value.type = Json::Type::Object;
    return value;
}();

const Json &at(const Json &object, const char *key, const Json &missing) {
    const Json *value = object.find(key);
    return value ? *value : missing;
}
const Json &object(const Json &value, std::string_view where) {
    if (!value.is(Json::Type::Object)) throw Error(std::string(where) + " must be a JSON object");
    return value;
}
const Json &list(const Json &value, std::string_view where) {
    if (!value.is(Json::Type::List)) throw Error(std::string(where) + " must be a JSON array");
    return value;
}
const std::string &text(const Json &value, std::string_view where) {
    if (!value.is(Json::Type::Text) || characters(value.text()) > kMostName)
        throw Error(std::string(where) + " must be a text of at most " + std::to_string(kMostName) + " characters");
    return value.text();
}
void only(const Json &value, std::initializer_list<const char *> known, const std::string &where, int version) {
    if (version < 2) return;
    for (const std::string &key : value.keys())
        if (std::none_of(known.begin(), known.end(), [&](const char *name) { return key == name; }))
            throw Error(where + " has the unknown key " + quoted(key, 40));
}

}  // namespace xnorpp
