// The C library: include/xnorpp.h over the core. Every function that can fail runs inside `guarded`, which no exception leaves.
#include "xnorpp.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <memory>
#include <new>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "../core/image/prepare.h"
#include "../core/model.h"
#include "../core/program/plan.h"
#include "../kernels/dispatch.h"
#include "files.h"

using namespace xnorpp;

namespace {

constexpr int kMostThreads = 1024, kThreadsByItself = 8;
constexpr size_t kMostSide = 1 << 16;

struct ArgumentError : std::runtime_error {
    using std::runtime_error::runtime_error;
};
struct ThreadsError : std::runtime_error {
    using std::runtime_error::runtime_error;
};

void require(bool condition, const char *message) {
    if (!condition) throw ArgumentError(message);
}

// Cut after the last whole character that has room.
void report(xnorpp_error *error, xnorpp_status status, const char *message) {
    if (!error) return;
    error->status = status;
    size_t length = std::strlen(message);
    if (length >= sizeof error->message) {
        length = sizeof error->message - 1;
        while (length > 0 && ((unsigned char)message[length] & 0xc0) == 0x80) length--;
    }
    std::memcpy(error->message, message, length);
    error->message[length] = 0;
}

template <class Work>
xnorpp_status guarded(xnorpp_error *error, const Work &work) noexcept {
    xnorpp_status status = XNORPP_ERROR_INTERNAL;
    try {
        try {
            work();
            report(error, XNORPP_OK, "");
            return XNORPP_OK;
        } catch (const LimitError &e) {
            report(error, status = XNORPP_ERROR_LIMIT, (std::string(e.what()) + "; set `" + e.limit + "` of xnorpp_options to a larger number").c_str());
        } catch (const FileError &e) {
            report(error, status = XNORPP_ERROR_FILE, e.what());
        } catch (const Error &e) {
            report(error, status = XNORPP_ERROR_MODEL, e.what());
        } catch (const ArgumentError &e) {
            report(error, status = XNORPP_ERROR_ARGUMENT, e.what());
        } catch (const std::invalid_argument &e) {
            report(error, status = XNORPP_ERROR_ARGUMENT, e.what());
        } catch (const ThreadsError &e) {
            report(error, status = XNORPP_ERROR_THREADS, e.what());
        } catch (const std::bad_alloc &) {
            report(error, status = XNORPP_ERROR_MEMORY, "there is not enough memory");
        } catch (const std::exception &e) {
            report(error, status, e.what());
        }
    } catch (...) {  // no memory for the message
        report(error, status, "an error without a description");
    }
    return status;
}

struct Settings {
    std::string isa;
    int threads = 0;
    Limits limits;
};

Settings settings_of(const xnorpp_options *given) {
    Settings out;
    if (!given) return out;
    require(given->struct_bytes == sizeof *given, "`struct_bytes` of the options is not sizeof(xnorpp_options); begin with XNORPP_OPTIONS");
    if (given->threads < 0 || given->threads > kMostThreads)
        throw ArgumentError("`threads` (=" + std::to_string(given->threads) + ") must be 1 to 1024, or 0 for the default");
    out.threads = given->threads;
    if (given->isa) out.isa = given->isa;
    if (given->file_bytes) out.limits.file_bytes = std::min(given->file_bytes, kMostFile);
    if (given->memory_bytes) out.limits.memory_bytes = given->memory_bytes;
    if (given->multiply_adds) out.limits.multiply_adds = given->multiply_adds;
    return out;
}

}  // namespace

struct xnorpp_model {
    std::shared_ptr<const std::vector<uint8_t>> file;  // null where nothing of it is needed any more
    Settings settings;
    Program program;  // its tensors are gone where the file is
    std::optional<Preparation> preparation;
    std::unique_ptr<Engine> engine;
    int threads = 1;  // of a call of one image

    void start() {
        int most = settings.threads;
        double share = HUGE_VAL;
        threads = most;
        if (most == 0) {
            most = std::min(available_cores(), kThreadsByItself), share = threads_worth(program);
            threads = std::max(1, (int)std::min(share, (double)most));
        }
        Limits limits = settings.limits;
        limits.memory_bytes = std::min<uint64_t>(limits.memory_bytes, SIZE_MAX);
        try {
            engine = make_engine(program, settings.isa, most, share, limits);
        } catch (const std::invalid_argument &) {
            throw;
        } catch (const Error &) {
            throw;
        } catch (const std::runtime_error &error) {
            throw ThreadsError(error.what());
        }
    }
};

namespace {

xnorpp_value value_of(const char *name, const Shape &shape) {
    xnorpp_value out{};
    out.name = name, out.axes = (int)std::min<size_t>(shape.size(), XNORPP_MOST_AXES), out.elements = 1;
    for (int i = 0; i < out.axes; i++) out.shape[i] = shape[(size_t)i], out.elements *= (size_t)shape[(size_t)i];
    return out;
}

void load(std::vector<uint8_t> bytes, const xnorpp_options *options, xnorpp_model **out) {
    auto model = std::make_unique<xnorpp_model>();
    model->settings = settings_of(options);
    auto file = std::make_shared<const std::vector<uint8_t>>(std::move(bytes));
    model->program = read_program(file->data(), file->size(), model->settings.limits.file_bytes);
    model->preparation = preparation_of(model->program);
    if (model->program.variable()) {
        model->file = file;
        if (model->preparation)
            model->program = with_input(model->program, {model->preparation->channels, model->preparation->height, model->preparation->width});
    }
    model->start();
    if (!model->file) {  // the engine has what it needs
        model->program.tensors.clear(), model->program.meta = Json();
        for (Operation &op : model->program.ops) op.attrs = Json();
    }
    *out = model.release();
}

void check_run(const xnorpp_model *model, const void *images, size_t count, float *const *outputs) {
    require(model, "`model` is NULL");
    require(images || count == 0, "`images` is NULL");
    require(outputs, "`outputs` is NULL");
    for (size_t i = 0; i < model->engine->outputs(); i++) require(outputs[i] || count == 0, "one of `outputs` is NULL");
    require(count <= 0x7fffffff, "`count` must be below 2^31");
}

const Preparation &preparation_for(const xnorpp_model *model, const uint8_t *pixels, size_t width, size_t height, size_t channels) {
    require(model, "`model` is NULL");
    require(pixels, "`pixels` is NULL");
    if (width < 1 || height < 1 || width > kMostSide || height > kMostSide)
        throw ArgumentError("`width` (=" + std::to_string(width) + ") and `height` (=" + std::to_string(height) + ") must be 1 to 65536");
    if (channels < 1 || channels > 4) throw ArgumentError("`channels` (=" + std::to_string(channels) + ") must be 1, 2, 3 or 4");
    if (!model->preparation)
        throw ArgumentError("the model's input has the shape " + text_of(model->program.example_shape) +
                            ", which is not an image that the file prepares; call xnorpp_run_floats");
    return *model->preparation;
}

size_t classes_of(const xnorpp_model *model) {
    require(model, "`model` is NULL");
    const Shape &shape = model->program.values[(size_t)model->program.outputs[0].value].shape;
    if (model->program.outputs.size() != 1 || shape.size() != 1)
        throw ArgumentError("the model has " + std::to_string(model->program.outputs.size()) + " outputs, the first of shape " + text_of(shape) +
                            "; classes can be read from a model with one output of one number per class");
    return (size_t)shape[0];
}

}  // namespace

extern "C" {

const char *xnorpp_version(void) { return XNORPP_VERSION; }

const char *xnorpp_isa(size_t index) {
    for (const IsaRow &row : isa_table())
        if (row.kernels && row.detected() && index-- == 0) return row.name;
    return nullptr;
}

xnorpp_status xnorpp_load(const char *path, const xnorpp_options *options, xnorpp_model **model, xnorpp_error *error) {
    if (model) *model = nullptr;
    return guarded(error, [&] {
        require(path && model, path ? "`model` is NULL" : "`path` is NULL");
        load(read_file(path, settings_of(options).limits.file_bytes), options, model);
    });
}

xnorpp_status xnorpp_load_memory(const void *bytes, size_t size, const xnorpp_options *options, xnorpp_model **model, xnorpp_error *error) {
    if (model) *model = nullptr;
    return guarded(error, [&] {
        require((bytes || size == 0) && model, model ? "`bytes` is NULL" : "`model` is NULL");
        const uint8_t *from = (const uint8_t *)bytes;
        const uint64_t most = settings_of(options).limits.file_bytes;
        if (size > most)  // before it is copied
            throw LimitError("the file has " + std::to_string(size) + " bytes, and `file_bytes` of `limits` allows " + std::to_string(most), "file_bytes");
        load(std::vector<uint8_t>(from, from + size), options, model);
    });
}

xnorpp_status xnorpp_resized(const xnorpp_model *model, int64_t height, int64_t width, xnorpp_model **other, xnorpp_error *error) {
    if (other) *other = nullptr;
    return guarded(error, [&] {
        require(model && other, model ? "`other` is NULL" : "`model` is NULL");
        require(model->file != nullptr, "the model takes images of one size only; xnorpp_takes_any_size tells");
        auto made = std::make_unique<xnorpp_model>();
        made->file = model->file, made->settings = model->settings;
        made->program = with_input(model->program, {model->program.input_shape[0], height, width});
        made->start();
        *other = made.release();
    });
}

void xnorpp_free(xnorpp_model *model) { delete model; }

xnorpp_value xnorpp_input(const xnorpp_model *model) { return model ? value_of("input", model->program.example_shape) : xnorpp_value{}; }

int xnorpp_takes_any_size(const xnorpp_model *model) { return model && model->file; }

size_t xnorpp_output_count(const xnorpp_model *model) { return model ? model->program.outputs.size() : 0; }

xnorpp_value xnorpp_output(const xnorpp_model *model, size_t index) {
    if (!model || index >= model->program.outputs.size()) return {};
    const Output &output = model->program.outputs[index];
    return value_of(output.name.c_str(), model->program.values[(size_t)output.value].shape);
}

size_t xnorpp_label_count(const xnorpp_model *model) { return model ? model->program.labels.size() : 0; }

const char *xnorpp_label(const xnorpp_model *model, size_t index) {
    return model && index < model->program.labels.size() ? model->program.labels[index].c_str() : nullptr;
}

const char *xnorpp_model_isa(const xnorpp_model *model) { return model ? model->engine->kernels().name : nullptr; }

int xnorpp_threads(const xnorpp_model *model) { return model ? model->threads : 0; }

size_t xnorpp_memory(const xnorpp_model *model) { return model ? model->engine->memory() : 0; }

xnorpp_status xnorpp_run_bytes(const xnorpp_model *model, const uint8_t *images, size_t count, float *const *outputs, xnorpp_error *error) {
    return guarded(error, [&] {
        check_run(model, images, count, outputs);
        if (count) model->engine->run(images, true, (long)count, outputs);
    });
}

xnorpp_status xnorpp_run_floats(const xnorpp_model *model, const float *images, size_t count, float *const *outputs, xnorpp_error *error) {
    return guarded(error, [&] {
        check_run(model, images, count, outputs);
        if (count) model->engine->run(images, false, (long)count, outputs);
    });
}

xnorpp_status xnorpp_prepare(const xnorpp_model *model, const uint8_t *pixels, size_t width, size_t height, size_t channels, uint8_t *prepared,
                             xnorpp_error *error) {
    return guarded(error, [&] {
        const Preparation &preparation = preparation_for(model, pixels, width, height, channels);
        require(prepared, "`prepared` is NULL");
        const std::vector<uint8_t> bytes = preparation.apply(pixels, (int)width, (int)height, (int)channels);
        std::memcpy(prepared, bytes.data(), bytes.size());
    });
}

xnorpp_status xnorpp_probabilities(const xnorpp_model *model, float *outputs, xnorpp_error *error) {
    return guarded(error, [&] {
        const size_t classes = classes_of(model);
        require(outputs, "`outputs` is NULL");
        to_probabilities(model->program, outputs, classes);
    });
}

xnorpp_status xnorpp_classify(const xnorpp_model *model, const uint8_t *pixels, size_t width, size_t height, size_t channels, size_t top,
                              xnorpp_guess *guesses, size_t *found, xnorpp_error *error) {
    if (found) *found = 0;
    return guarded(error, [&] {
        const Preparation &preparation = preparation_for(model, pixels, width, height, channels);
        const size_t classes = classes_of(model), count = std::min(top, classes);
        require(guesses && top > 0, guesses ? "`top` (=0) must be at least 1" : "`guesses` is NULL");
        std::vector<float> scores(classes);
        float *const outputs = scores.data();
        const std::vector<float> input = preparation.normalise(preparation.apply(pixels, (int)width, (int)height, (int)channels));
        model->engine->run(input.data(), false, 1, &outputs);
        to_probabilities(model->program, outputs, classes);
        std::vector<size_t> order(classes);
        std::iota(order.begin(), order.end(), (size_t)0);
        std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return scores[a] > scores[b]; });
        for (size_t i = 0; i < count; i++) guesses[i] = {order[i], scores[order[i]], xnorpp_label(model, order[i])};
        if (found) *found = count;
    });
}

}  // extern "C"
