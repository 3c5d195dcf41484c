// The thin binding: checks sizes, copies constants into the engine, releases the interpreter lock for a call.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <unistd.h>

#include <exception>
#include <limits>
#include <optional>
#include <stdexcept>
#if defined(__GLIBCXX__)
#include <cxxabi.h>
#endif

#include "../kernels/dispatch.h"
#include "../core/engine.h"

namespace nb = nanobind;
using namespace xnorpp;

namespace {

using Floats = nb::ndarray<const float, nb::c_contig, nb::device::cpu>;
using Bytes = nb::ndarray<const uint8_t, nb::c_contig, nb::device::cpu>;
using Shorts = nb::ndarray<const int16_t, nb::c_contig, nb::device::cpu>;
using Words = nb::ndarray<const int32_t, nb::c_contig, nb::device::cpu>;
using Ints = std::vector<int>;

void require(bool condition, const char *message) {
    if (!condition) throw std::invalid_argument(message);
}

// A copy with room to whole vectors of channels; `least` is the size it must have.
Buffer copy(Budget &budget, nb::handle object, size_t least, const char *message) {
    if (object.is_none()) return {};
    const auto array = nb::cast<Floats>(object);
    require(array.size() == least, message);
    budget.take(round_up(array.size(), 64) * 4);
    Buffer buffer(round_up(array.size(), 64) * 4);
    std::memcpy(buffer.as(), array.data(), array.size() * 4);
    return buffer;
}

StageKind stage_kind(const std::string &name) {
    static const std::pair<const char *, StageKind> names[] = {
        {"map", StageKind::Map},           {"full", StageKind::Full},           {"affine", StageKind::Affine},
        {"relu", StageKind::Relu},         {"prelu", StageKind::Prelu},
        {"hardtanh", StageKind::Hardtanh}, {"add_value", StageKind::AddValue},  {"mul_value", StageKind::MulValue},
        {"mul_pixel", StageKind::MulPixel}, {"store", StageKind::Store},        {"sign", StageKind::Sign},
    };
    for (const auto &row : names)
        if (name == row.first) return row.second;
    throw std::invalid_argument("unknown stage " + name);
}

// A stage is a dict: kind, and where needed a, b, map, full, flip (float32 arrays), lo, hi, value.
std::vector<StageSpec> stages_of(Engine &engine, const nb::list &list, int c, int h, int w) {
    std::vector<StageSpec> stages;
    Budget &budget = engine.budget();
    for (nb::handle item : list) {
        const auto row = nb::cast<nb::dict>(item);
        const auto get = [&](const char *key) -> nb::object {
            return row.contains(key) ? nb::object(row[key]) : nb::none();
        };
        StageSpec stage;
        stage.kind = stage_kind(nb::cast<std::string>(get("kind")));
        const size_t pixels = (size_t)h * w, stride = round_up((size_t)c, 16);
        const size_t size = stage.kind == StageKind::Map ? pixels : stage.kind == StageKind::Full ? pixels * stride : (size_t)c;
        stage.a = copy(budget, get("a"), size, "a stage's constants have a wrong size");
        stage.b = copy(budget, get("b"), (size_t)c, "a stage's summands have a wrong size");
        stage.map = copy(budget, get("map"), pixels, "a stage's map has a wrong size");
        stage.full = copy(budget, get("full"), pixels * stride, "a stage's factor has a wrong size");
        stage.flip = copy(budget, get("flip"), (size_t)c, "a stage's flip mask has a wrong size");
        if (row.contains("lo")) stage.lo = nb::cast<float>(get("lo")), stage.hi = nb::cast<float>(get("hi"));
        if (row.contains("value")) {
            stage.value = nb::cast<int>(get("value"));
            const ValueSpec &v = engine.value(stage.value);
            const bool pixel = stage.kind == StageKind::MulPixel;
            require(v.h == h && v.w == w && v.c == (pixel ? 1 : c), "a stage's value has another shape");
            require(v.bits == (stage.kind == StageKind::Sign), "a stage's value has another kind");
        }
        stages.push_back(std::move(stage));
    }
    return stages;
}

// `window`: c, h, w, o, kh, kw, sh, sw, ph, pw, dh, dw, groups, pad_value.
void add_conv(Engine &engine, bool bits, int in, const Ints &window, nb::object weight, nb::object bias,
              nb::object picture, const nb::list &stages, bool feeds_pool) {
    require(window.size() == 14, "a window has 14 numbers");
    const ValueSpec &v = engine.value(in);
    ConvSpec s{window[0], window[1], window[2],  window[3],  window[4],  window[5],  window[6], window[7],
               window[8], window[9], window[10], window[11], window[12], window[13], bits ? v.stride / 4 : v.stride};
    require(v.bits == bits && v.c * v.pixels() == s.c * s.h * s.w && v.c == s.c, "a convolution's input has another shape");
    const size_t taps = (size_t)s.kh * s.kw, fan = (size_t)(s.c / s.groups);
    Step step;
    step.kind = StepKind::Conv;
    step.in = in;
    step.feeds_pool = feeds_pool;
    if (bits) {
        const auto w = nb::cast<Bytes>(weight);
        require(w.size() == (size_t)s.o * taps * ((fan + 7) / 8), "a convolution's weight has a wrong size");
        step.conv = std::make_unique<ConvStore>(build_bit_conv(engine.kernels(), engine.budget(), s, w.data()));
    } else {
        const auto w = nb::cast<Floats>(weight);
        require(w.size() == (size_t)s.o * taps * fan, "a convolution's weight has a wrong size");
        const Buffer b = copy(engine.budget(), bias, (size_t)s.o, "a convolution's bias has a wrong size");
        step.conv = std::make_unique<ConvStore>(build_float_conv(engine.kernels(), engine.budget(), s, w.data(), b.as<float>()));
        if (!picture.is_none()) {
            const auto [q, mean, rest, scale] = nb::cast<std::tuple<Shorts, Words, Words, Floats>>(picture);
            const size_t filters = (size_t)s.o;
            require(q.size() == w.size() && mean.size() == filters * taps && rest.size() == filters &&
                        scale.size() == filters && s.groups == 1 && s.dw == 1,
                    "a picture's filters have a wrong size");
            const PictureSpec spec{q.data(), mean.data(), rest.data(), scale.data()};
            step.picture = std::make_unique<ConvStore>(build_picture_conv(engine.kernels(), engine.budget(), s, spec, b.as<float>()));
        }
    }
    const Conv &k = step.conv->conv;
    step.c = k.o, step.h = k.oh, step.w = k.ow;
    step.stages = stages_of(engine, stages, step.c, step.h, step.w);
    engine.add_step(std::move(step));
}

// `numbers`: a pool's kh, kw, sh, sw, ph, pw, dh, dw, include_pad; a pad's six edges; nothing otherwise.
void add_step(Engine &engine, const std::string &kind, int in, const Ints &shape, const Ints &numbers, float value,
              const nb::list &stages) {
    static const std::pair<const char *, StepKind> names[] = {
        {"max_pool2d", StepKind::MaxPool}, {"avg_pool2d", StepKind::AvgPool},      {"box_filter", StepKind::BoxFilter},
        {"abs_mean", StepKind::AbsMean},   {"global_avg_pool", StepKind::GlobalMean}, {"pointwise", StepKind::Pointwise},
        {"flatten", StepKind::Flatten},    {"softmax", StepKind::Softmax},         {"pad2d", StepKind::Pad},
        {"signs", StepKind::Signs},
    };
    Step step;
    bool known = false;
    for (const auto &row : names)
        if (kind == row.first) step.kind = row.second, known = true;
    if (!known) throw std::invalid_argument("unknown step " + kind);
    const ValueSpec &v = engine.value(in);
    require(shape.size() == 3, "a shape has 3 numbers");
    step.in = in;
    step.c = shape[0], step.h = shape[1], step.w = shape[2];
    const bool same_pixels = step.h == v.h && step.w == v.w;
    if (step.kind == StepKind::MaxPool || step.kind == StepKind::AvgPool || step.kind == StepKind::BoxFilter) {
        require(numbers.size() == 9, "a pool has 9 numbers");
        step.pool = {v.c, v.h, v.w, step.h, step.w, numbers[0], numbers[1], numbers[2], numbers[3], numbers[4], numbers[5],
                     numbers[6], numbers[7], step.kind == StepKind::MaxPool, numbers[8] != 0, step.kind == StepKind::BoxFilter};
        require(step.c == v.c && v.stride == (int)round_up((size_t)v.c, 16), "a pool's input has another layout");
    } else if (step.kind == StepKind::Pad) {
        require(numbers.size() == 6, "a pad has 6 numbers");
        for (size_t i = 0; i < 6; i++) step.pad[i] = numbers[i];
        step.pad_value = value;
    } else if (step.kind == StepKind::Flatten) {
        require(step.c == v.c * v.pixels() && step.h == 1 && step.w == 1, "a flattened value has another size");
    } else if (step.kind == StepKind::GlobalMean) {
        require(step.c == v.c && step.h == 1 && step.w == 1, "a pooled value has another shape");
    } else if (step.kind == StepKind::AbsMean) {
        require(step.c == 1 && same_pixels, "a channel mean has another shape");
    } else {
        require(step.c == v.c && same_pixels, "a pointwise step has another shape than its input");
    }
    require(v.bits == (step.kind == StepKind::Signs), "a step's input has another kind");
    step.stages = stages_of(engine, stages, step.c, step.h, step.w);
    engine.add_step(std::move(step));
}

void finish(Engine &engine, int input, int output, size_t arena_bytes, const Floats &table) {
    engine.budget().take(table.size() * 4);
    engine.finish(input, output, arena_bytes, std::vector<float>(table.data(), table.data() + table.size()));
}

// Takes the interpreter lock back. Where the interpreter ends meanwhile, Python before 3.14 ends the calling thread by
// unwinding its stack, which aborts the process at the first function that promises not to throw (nanobind's do). The
// thread is stopped here instead, as newer versions do it; the process ends around it.
void take_lock(PyThreadState *state) {
#if defined(__GLIBCXX__)
    try {
        PyEval_RestoreThread(state);
    } catch (abi::__forced_unwind &) {
        for (;;) pause();
    }
#else
    PyEval_RestoreThread(state);
#endif
}

// work() without the interpreter lock.
template <class Work>
void unlocked(const Work &work) {
    PyThreadState *state = PyEval_SaveThread();
    std::exception_ptr error;
    try {
        work();
    } catch (...) {
        error = std::current_exception();
    }
    take_lock(state);
    if (error) std::rethrow_exception(error);
}

template <class T>
void run(Engine &engine, nb::ndarray<const T, nb::c_contig, nb::device::cpu> x,
         nb::ndarray<float, nb::c_contig, nb::device::cpu> y) {
    const size_t n = x.ndim() ? x.shape(0) : 0;
    require(x.size() == n * engine.input_elements() && y.size() == n * engine.output_elements(), "wrong batch shape");
    const void *from = x.data();
    float *to = y.data();
    unlocked([&] { engine.run(from, sizeof(T) == 1, (long)n, to); });
}

template <class T>
std::vector<double> step_seconds(Engine &engine, nb::ndarray<const T, nb::c_contig, nb::device::cpu> x, bool together) {
    require(x.size() == engine.input_elements(), "one picture is timed");
    const void *from = x.data();
    std::vector<double> seconds;
    unlocked([&] {
        seconds = together ? engine.step_seconds_together(from, sizeof(T) == 1) : engine.step_seconds(from, sizeof(T) == 1);
    });
    return seconds;
}

}  // namespace

NB_MODULE(_core, m) {
    m.doc() = "The native core of xnorpp.runtime.";
    nb::set_leak_warnings(false);  // a forked child, and a process that ends during a call, leave objects behind
    m.def("available_isas", &available_isas, "Names of the kernels built and detected, best first.");
    m.def("isa_table", [] {
        std::vector<std::tuple<std::string, bool, bool>> rows;
        for (const IsaRow &row : isa_table())
            rows.emplace_back(row.name, row.kernels != nullptr, row.kernels != nullptr && row.detected());
        return rows;
    }, "(name, built, detected) of every row of the dispatch table.");
    nb::class_<Engine>(m, "Engine")
        .def(nb::init<const std::string &, int, double, size_t>(), nb::arg("isa"), nb::arg("threads"),
             nb::arg("share") = std::numeric_limits<double>::infinity(),
             nb::arg("memory") = std::numeric_limits<size_t>::max())
        .def_prop_ro("isa", [](const Engine &e) { return std::string(e.kernels().name); })
        .def_prop_ro("memory", &Engine::memory)
        .def("add_value", [](Engine &e, bool bits, int c, int h, int w, int stride, size_t offset) {
            require(c > 0 && h > 0 && w > 0 && stride > 0, "a value has positive extents");
            return e.add_value({bits, c, h, w, stride, offset});
        })
        .def("add_conv", &add_conv, nb::arg("bits"), nb::arg("source"), nb::arg("window"), nb::arg("weight"),
             nb::arg("bias").none(), nb::arg("picture").none(), nb::arg("stages"), nb::arg("feeds_pool"))
        .def("add_step", &add_step)
        .def("finish", &finish)
        .def("start", &Engine::start)
        .def("step_seconds", &step_seconds<uint8_t>, nb::arg("x"), nb::arg("together") = false)
        .def("step_seconds", &step_seconds<float>, nb::arg("x"), nb::arg("together") = false)
        .def("run", &run<uint8_t>)
        .def("run", &run<float>);
}
