// Damaged files through the reader, the planner and the engine, without Python; built with AddressSanitizer and
// UndefinedBehaviorSanitizer (tests/native/test_fuzz.py). Usage: fuzz [FILE...]; without files it reads cases from its
// input, each an unsigned 32-bit length (little-endian) and so many bytes. A file must be refused by one Error with one
// sentence, or plan, build and run; anything else ends the program. Prints how many did what, and the most memory that
// reading took by itself.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>
#include <string>
#include <vector>

#include "../../csrc/core/json.h"
#include "../../csrc/core/model.h"
#include "../../csrc/core/plan.h"
#include "../../csrc/core/program.h"

namespace {

size_t held = 0, peak = 0;  // bytes from `new`: all that the reader takes

void *take(size_t bytes) {
    auto *block = (size_t *)std::malloc(bytes + 16);
    if (!block) throw std::bad_alloc();
    block[0] = bytes;
    held += bytes;
    peak = held > peak ? held : peak;
    return block + 2;
}

void give(void *pointer) {
    if (!pointer) return;
    auto *block = (size_t *)pointer - 2;
    held -= block[0];
    std::free(block);
}

}  // namespace

void *operator new(size_t bytes) { return take(bytes); }
void *operator new[](size_t bytes) { return take(bytes); }
void *operator new(size_t bytes, const std::nothrow_t &) noexcept { return take(bytes); }
void *operator new[](size_t bytes, const std::nothrow_t &) noexcept { return take(bytes); }
void operator delete(void *pointer, const std::nothrow_t &) noexcept { give(pointer); }
void operator delete[](void *pointer, const std::nothrow_t &) noexcept { give(pointer); }
void operator delete(void *pointer) noexcept { give(pointer); }
void operator delete[](void *pointer) noexcept { give(pointer); }
void operator delete(void *pointer, size_t) noexcept { give(pointer); }
void operator delete[](void *pointer, size_t) noexcept { give(pointer); }

namespace {

using namespace xnorpp;

constexpr uint64_t kSmallWork = 1 << 22;  // run what loads only if it is not a big computation by its own right
constexpr size_t kReaderBase = (size_t)4 << 20, kReaderFactor = 120;  // bytes that reading may take: base, and per byte of a file

long refused = 0, loaded = 0, run = 0;
size_t most = 0;

void require(bool condition, const char *what) {
    if (condition) return;
    std::fprintf(stderr, "fuzz: %s\n", what);
    std::abort();
}

void check_sentence(const std::string &text) {
    require(!text.empty() && text.size() < 2000 && text.find('\n') == std::string::npos, "an error is one sentence");
    require(is_utf8(text.data(), text.size()), "an error is valid UTF-8");
}

void run_engine(const Program &program) {
    Limits limits;
    limits.memory_bytes = (uint64_t)256 << 20, limits.multiply_adds = kSmallWork;
    const auto engine = make_engine(program, "generic", 1, 1.0, limits);
    std::vector<std::vector<float>> outputs;
    std::vector<float *> to;
    for (size_t i = 0; i < engine->outputs(); i++) outputs.emplace_back(2 * engine->output_elements(i));
    for (auto &output : outputs) to.push_back(output.data());
    const size_t count = 2 * engine->input_elements();
    std::vector<float> floats(count);
    std::vector<uint8_t> bytes(count);
    for (size_t i = 0; i < count; i++) floats[i] = (float)((int)(i * 2654435761u >> 24) - 128) / 50.0f, bytes[i] = (uint8_t)(i * 40503u >> 3);
    engine->run(floats.data(), false, 2, to.data());
    engine->run(bytes.data(), true, 2, to.data());
    run++;
}

void feed(const std::vector<uint8_t> &file) {
    const size_t before = held;
    peak = held;
    Program program;
    try {
        program = read_program(file.data(), file.size());
    } catch (const Error &error) {
        check_sentence(error.what());
        refused++;
    }
    const size_t taken = peak - before;
    most = taken > most ? taken : most;
    require(taken <= kReaderBase + kReaderFactor * file.size(), "reading a file takes memory in proportion to its size");
    if (program.ops.empty()) return;
    loaded++;
    make_steps(program);
    try {
        run_engine(program);
        if (program.variable()) {
            Shape shape = program.example_shape;
            shape[1] += 1;
            run_engine(with_input(program, shape));
        }
    } catch (const Error &error) {
        check_sentence(error.what());
    }
}

bool read_all(std::FILE *file, std::vector<uint8_t> &bytes) {
    bytes.clear();
    uint8_t part[1 << 14];
    for (size_t count; (count = std::fread(part, 1, sizeof part, file)) > 0;) bytes.insert(bytes.end(), part, part + count);
    return !std::ferror(file);
}

}  // namespace

int main(int count, char **names) {
    std::vector<uint8_t> bytes;
    for (int i = 1; i < count; i++) {
        std::FILE *file = std::fopen(names[i], "rb");
        require(file && read_all(file, bytes), "a file cannot be read");
        std::fclose(file);
        feed(bytes);
    }
    uint8_t size[4];
    while (count < 2 && std::fread(size, 1, 4, stdin) == 4) {
        bytes.resize((size_t)size[0] | (size_t)size[1] << 8 | (size_t)size[2] << 16 | (size_t)size[3] << 24);
        require(bytes.empty() || std::fread(bytes.data(), 1, bytes.size(), stdin) == bytes.size(), "the last case is cut off");
        feed(bytes);
    }
    std::printf("%ld refused, %ld loaded, %ld run, at most %zu bytes while reading\n", refused, loaded, run, most);
    return 0;
}
