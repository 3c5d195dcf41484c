// xnorpp-run: classifies images with a packed model. It uses nothing but the C library.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>
#if defined(_WIN32)
#include <fcntl.h>
#include <io.h>
#endif

#include "xnorpp.h"

namespace {

constexpr size_t kMostImage = (size_t)1 << 30;
const char kUsage[] =
    "usage: xnorpp-run [--top K] [--threads N] [--isa NAME] [--raw] MODEL IMAGE...\n"
    "\n"
    "Classifies images with a packed model (.xnor). An IMAGE is a PPM or PGM file (P6, P5), resized and cropped as the model\n"
    "states it; with --raw it is the bytes of the model's input, rows of pixels of channels. - is the standard input.\n"
    "\n"
    "  --top K      how many classes to print (default: 5)\n"
    "  --threads N  how many threads to use (default: 1)\n"
    "  --isa NAME   the kernels: avx512, avx2, neon, ... (default: the best of this machine)\n"
    "  --raw        images are bytes without a header\n"
    "  --version    print the version and the kernels that run here\n"
    "\n"
    "The exit status is 0, 1 where an image cannot be read, or 2 for wrong arguments and models.\n";

// A text from a file for a terminal: whatever does not print by itself (controls, marks that turn the direction of writing,
// private characters) becomes an escape.
std::string printable(const std::string &text) {
    std::string out;
    for (size_t i = 0; i < text.size();) {
        const unsigned char lead = (unsigned char)text[i];
        const size_t length = lead < 0x80 ? 1 : lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : lead >= 0xc2 ? 2 : 1;
        unsigned long code = length == 1 ? lead : lead & (0xffu >> (length + 1));
        bool whole = i + length <= text.size() && (lead < 0x80 || length > 1);
        for (size_t k = 1; k < length && whole; k++) {
            whole = ((unsigned char)text[i + k] & 0xc0) == 0x80;
            code = code << 6 | ((unsigned char)text[i + k] & 0x3f);
        }
        const bool hidden = code < 0x20 || (code >= 0x7f && code < 0xa1) || code == 0xad || (code >= 0x600 && code <= 0x605) || code == 0x61c ||
                            code == 0x180e || (code >= 0x2000 && code <= 0x200f) || (code >= 0x2028 && code <= 0x202f) ||
                            (code >= 0x205f && code <= 0x206f) || code == 0x3000 || (code >= 0xd800 && code <= 0xf8ff) || code == 0xfeff ||
                            (code >= 0xfff0 && code <= 0xfffb) || (code & 0xfffe) == 0xfffe || code >= 0xe0000;
        char escape[16];
        if (!whole) std::snprintf(escape, sizeof escape, "\\x%02x", lead), out += escape, i++;
        else if (code == '\n' || code == '\r' || code == '\t') out += code == '\n' ? "\\n" : code == '\r' ? "\\r" : "\\t", i++;
        else {
            if (hidden) std::snprintf(escape, sizeof escape, code < 0x100 ? "\\x%02lx" : code < 0x10000 ? "\\u%04lx" : "\\U%08lx", code), out += escape;
            else out.append(text, i, length);
            i += length;
        }
    }
    return out;
}

struct Image {
    std::vector<unsigned char> bytes;
    size_t begin = 0, width = 0, height = 0, channels = 0;
};

// Null, or why the file cannot be read.
const char *read_all(const char *name, std::vector<unsigned char> &bytes) {
    const bool standard = !std::strcmp(name, "-");
#if defined(_WIN32)
    if (standard) _setmode(_fileno(stdin), _O_BINARY);
#endif
    std::FILE *file = standard ? stdin : std::fopen(name, "rb");
    if (!file) return "it cannot be opened";
    bytes.clear();
    unsigned char part[1 << 14];
    for (size_t count; (count = std::fread(part, 1, sizeof part, file)) > 0 && bytes.size() <= kMostImage;) bytes.insert(bytes.end(), part, part + count);
    const bool bad = std::ferror(file) != 0;
    if (!standard) std::fclose(file);
    return bad ? "it cannot be read" : bytes.size() > kMostImage ? "it has more than 2^30 bytes" : nullptr;
}

// The next number of a PPM header; 0 where there is none. A # starts a comment.
size_t next_number(const std::vector<unsigned char> &bytes, size_t &at) {
    for (; at < bytes.size() && (std::strchr(" \t\r\n\v\f#", bytes[at]) && bytes[at]); at++)
        if (bytes[at] == '#')
            while (at < bytes.size() && bytes[at] != '\n') at++;
    size_t value = 0;
    for (; at < bytes.size() && bytes[at] >= '0' && bytes[at] <= '9' && value < 1000000; at++) value = value * 10 + (size_t)(bytes[at] - '0');
    return value;
}

const char *read_ppm(Image &p) {
    std::vector<unsigned char> &b = p.bytes;
    if (b.size() < 2 || b[0] != 'P' || (b[1] != '6' && b[1] != '5')) return "it is neither a PPM (P6) nor a PGM (P5) file; give bytes with --raw";
    p.channels = b[1] == '6' ? 3 : 1;
    size_t at = 2;
    p.width = next_number(b, at), p.height = next_number(b, at);
    const size_t most = next_number(b, at);
    if (p.width < 1 || p.height < 1 || p.width > 65536 || p.height > 65536) return "its width and height must be 1 to 65536";
    if (most < 1 || most > 255) return "its largest value must be 1 to 255";
    p.begin = at + 1;  // one white space ends the header
    if (b.size() < p.begin || (b.size() - p.begin) / p.channels / p.width < p.height) return "it is cut off";
    if (most != 255)
        for (size_t i = p.begin; i < b.size(); i++) b[i] = (unsigned char)std::nearbyint((double)(b[i] < most ? b[i] : most) / (double)most * 255);
    return nullptr;
}

bool number(const char *text, long least, long most, long &value) {
    char *end = nullptr;
    value = text ? std::strtol(text, &end, 10) : 0;
    return text && *text && !*end && value >= least && value <= most;
}

int fail(const std::string &message) {
    std::fprintf(stderr, "xnorpp-run: %s\n", printable(message).c_str());
    return 2;
}

// The classes of one image; null, or why there are none.
const char *classify(const xnorpp_model *model, const char *name, bool raw, std::vector<xnorpp_guess> &guesses, xnorpp_error &error) {
    Image p;
    if (const char *why = read_all(name, p.bytes)) return why;
    const xnorpp_value input = xnorpp_input(model);
    if (raw) {
        if (input.axes != 3 || p.bytes.size() != input.elements) return "its size is not that of the model's input";
        p.channels = (size_t)input.shape[0], p.height = (size_t)input.shape[1], p.width = (size_t)input.shape[2];
        std::vector<float> scores(xnorpp_output(model, 0).elements);
        float *const outputs = scores.data();
        if (xnorpp_output_count(model) != 1) return "the model has several outputs";
        if (xnorpp_run_bytes(model, p.bytes.data(), 1, &outputs, &error) || xnorpp_probabilities(model, outputs, &error)) return error.message;
        std::vector<xnorpp_guess> best;
        for (size_t top = 0; top < guesses.size() && top < scores.size(); top++) {
            size_t index = 0;
            for (size_t i = 1; i < scores.size(); i++) index = scores[i] > scores[index] ? i : index;
            best.push_back({index, scores[index], xnorpp_label(model, index)});
            scores[index] = -1;
        }
        guesses = best;
        return nullptr;
    }
    if (const char *why = read_ppm(p)) return why;
    size_t found = 0;
    if (xnorpp_classify(model, p.bytes.data() + p.begin, p.width, p.height, p.channels, guesses.size(), guesses.data(), &found, &error)) return error.message;
    guesses.resize(found);
    return nullptr;
}

}  // namespace

int main(int count, char **arguments) {
    xnorpp_options options = XNORPP_OPTIONS;
    options.threads = 1;
    long top = 5, threads = 1;
    bool raw = false;
    std::vector<const char *> names;
    for (int i = 1; i < count; i++) {
        const std::string word = arguments[i];
        const char *next = i + 1 < count ? arguments[i + 1] : nullptr;
        if (word == "--help" || word == "-h") return std::fputs(kUsage, stdout), 0;
        if (word == "--version") {
            std::printf("xnorpp-run %s", xnorpp_version());
            for (size_t k = 0; xnorpp_isa(k); k++) std::printf("%s %s", k ? "," : ", kernels:", xnorpp_isa(k));
            return std::puts(""), 0;
        }
        if (word == "--raw") raw = true;
        else if (word == "--top") {
            if (!number(next, 1, 100000, top)) return fail("`--top` needs a number of at least 1");
            i++;
        } else if (word == "--threads") {
            if (!number(next, 1, 1024, threads)) return fail("`--threads` needs a number from 1 to 1024");
            options.threads = (int)threads, i++;
        } else if (word == "--isa") {
            if (!next) return fail("`--isa` needs a name");
            options.isa = next, i++;
        } else if (word.size() > 1 && word[0] == '-') return fail("the option " + word + " is unknown; --help lists all");
        else names.push_back(arguments[i]);
    }
    if (names.size() < 2) return std::fputs(kUsage, stderr), 2;
    xnorpp_error error;
    xnorpp_model *model;
    if (xnorpp_load(names[0], &options, &model, &error)) return fail(error.message);
    int status = 0;
    for (size_t i = 1; i < names.size(); i++) {
        std::vector<xnorpp_guess> guesses((size_t)top);
        if (const char *why = classify(model, names[i], raw, guesses, error)) {
            std::fprintf(stderr, "xnorpp-run: %s: %s\n", printable(names[i]).c_str(), printable(why).c_str());
            status = 1;
            continue;
        }
        std::printf("%s:", printable(names[i]).c_str());
        for (size_t k = 0; k < guesses.size(); k++) {
            const std::string label = guesses[k].label ? printable(guesses[k].label) : std::to_string(guesses[k].index);
            std::printf("%s %s %.1f %%", k ? "," : "", label.c_str(), 100.0 * (double)guesses[k].probability);
        }
        std::puts("");
    }
    xnorpp_free(model);
    return status;
}
