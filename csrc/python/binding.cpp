// The thin binding: hands bytes to the core, its descriptions back as plain Python data, and releases the interpreter lock
// for a call. What each name does is written in the core's headers.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <exception>
#include <stdexcept>
#include <string>
#if defined(__GLIBC__) && defined(__GLIBCXX__)
#include <cxxabi.h>
#include <unistd.h>
#endif

#include "../core/model.h"
#include "../core/program/operations.h"
#include "../core/program/plan.h"
#include "../core/program/stem.h"
#include "../core/threads/distance.h"
#include "../kernels/dispatch.h"
#include "file_memory.h"

namespace nb = nanobind;
using namespace xnorpp;

namespace {

using Bytes = nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

PyObject *error_class = nullptr;  // what an Error becomes, see `raise_as`

void require(bool condition, const char *message) {
    if (!condition) throw std::invalid_argument(message);
}

// A program and the memory that its tensors point to.
struct Native {
    Program program;
    nb::object owner;
    const uint8_t *bytes = nullptr;  // of the file it was read from, or null
    FileMemory *memory = nullptr;    // the same, where tensors in it may be released; of `owner`

    // For whoever reads tensors. The interpreter lock is held.
    const Program &whole() const {
        if (memory) memory->restore();
        return program;
    }
};

// file_bytes, memory_bytes, multiply_adds.
Limits limits_of(const std::tuple<uint64_t, uint64_t, uint64_t> &given) {
    return {std::get<0>(given), std::get<1>(given), std::get<2>(given)};
}
using LimitNumbers = std::tuple<uint64_t, uint64_t, uint64_t>;

// Takes the interpreter lock back. Where the interpreter ends meanwhile, Python before 3.14 on Linux with glibc ends the calling thread by
// unwinding its stack, which aborts the process at the first function that promises not to throw (nanobind's do). The
// thread is stopped here instead, as newer versions do it; the process ends around it.
void take_lock(PyThreadState *state) {
#if defined(__GLIBC__) && defined(__GLIBCXX__)
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

nb::object python(const Json &value) {
    switch (value.type) {
        case Json::Type::Null: return nb::none();
        case Json::Type::Bool: return nb::bool_(value.boolean);
        case Json::Type::Integer: return nb::int_(value.integer);
        case Json::Type::Real: return nb::float_(value.real);
        case Json::Type::Text: return nb::str(value.text().c_str(), value.text().size());
        case Json::Type::List: {
            nb::list out;
            for (const Json &item : value.items()) out.append(python(item));
            return out;
        }
        default: {
            nb::dict out;
            for (size_t i = 0; i < value.items().size(); i++) out[nb::str(value.keys()[i].c_str(), value.keys()[i].size())] = python(value.items()[i]);
            return out;
        }
    }
}

nb::tuple python(const Shape &shape) {
    nb::list out;
    for (const int64_t size : shape) out.append(size < 0 ? nb::object(nb::none()) : nb::object(nb::int_(size)));
    return nb::tuple(out);
}

template <class T>
nb::tuple texts(const T &names) {
    nb::list out;
    for (const auto &name : names) out.append(nb::str(std::string(name).c_str()));
    return nb::tuple(out);
}

// (name, dtype, shape, bytes) of tensors that Python has.
std::vector<Tensor> tensors_of(const nb::list &rows) {
    static const std::pair<const char *, Encoding> codes[] = {{"F32", Encoding::Float32}, {"F16", Encoding::Float16},
                                                              {"U8", Encoding::Untyped},  {"I8", Encoding::Int8},
                                                              {"I16", Encoding::Int16},   {"I32", Encoding::Int32}};
    std::vector<Tensor> tensors;
    for (nb::handle item : rows) {
        const auto [name, code, shape, bytes] = nb::cast<std::tuple<std::string, std::string, Shape, Bytes>>(item);
        Tensor tensor;
        tensor.name = name, tensor.shape = shape, tensor.data = bytes.data(), tensor.bytes = bytes.size();
        bool known = false;
        for (const auto &row : codes)
            if (code == row.first) tensor.encoding = row.second, known = true;
        if (!known) throw Error("tensor " + quoted(name) + " has dtype " + quoted(code, 20) + "; allowed are F32, F16, U8, I8, I16, I32");
        for (const int64_t size : shape)
            if (size < 1) throw Error("tensor " + quoted(name) + " has shape " + text_of(shape) + "; positive sizes are needed");
        const size_t width = code == "F32" || code == "I32" ? 4 : code == "F16" || code == "I16" ? 2 : 1;
        require((size_t)tensor.elements() * width == tensor.bytes, "a tensor's bytes are not its shape's size");
        tensors.push_back(std::move(tensor));
    }
    return tensors;
}

std::unique_ptr<Native> read_file(nb::bytes file, uint64_t file_bytes) {
    auto native = std::make_unique<Native>();
    native->bytes = (const uint8_t *)file.c_str();
    const size_t size = file.size();
    unlocked([&] { native->program = read_program(native->bytes, size, file_bytes); });
    native->owner = file;
    return native;
}

// From the first `size` bytes of a FileMemory.
std::unique_ptr<Native> read_memory(nb::object owner, size_t size, uint64_t file_bytes) {
    auto native = std::make_unique<Native>();
    native->memory = nb::cast<FileMemory *>(owner);
    require(size <= native->memory->size(), "there are not so many bytes");
    native->bytes = native->memory->data();
    unlocked([&] { native->program = read_program(native->bytes, size, file_bytes); });
    native->owner = std::move(owner);
    return native;
}

// A program of one size is packed once, and then its large filters are not needed; another size packs them again.
std::unique_ptr<Engine> start_engine(const Native &native, const std::string &isa, int threads, double share, const LimitNumbers &limits) {
    return make_engine(native.whole(), isa, threads, share, limits_of(limits), native.program.variable() ? nullptr : native.memory);
}

std::unique_ptr<Native> build(const std::string &text, int version, nb::list tensors) {
    auto native = std::make_unique<Native>();
    native->program = parse_program(text, version, tensors_of(tensors), true);
    native->owner = tensors;
    return native;
}

nb::dict describe(const Native &native) {
    const Program &p = native.program;
    nb::dict out;
    out["version"] = p.version, out["opset"] = p.opset;
    out["input_shape"] = python(p.input_shape), out["example_shape"] = python(p.example_shape);
    nb::list mean, std;
    for (const double value : p.mean) mean.append(value);
    for (const double value : p.std) std.append(value);
    out["mean"] = nb::tuple(mean), out["std"] = nb::tuple(std);
    out["preprocess"] = python(p.preprocess), out["meta"] = python(p.meta);
    out["labels"] = p.has_labels ? nb::object(texts(p.labels)) : nb::object(nb::none());
    out["temperature"] = p.temperature > 0 ? nb::object(nb::float_(p.temperature)) : nb::object(nb::none());
    out["work"] = p.work;
    nb::list ops, tensors;
    for (const Operation &op : p.ops) {
        nb::list inputs;
        nb::dict roles;
        for (const int input : op.inputs) inputs.append(nb::str(p.names[(size_t)input].c_str()));
        for (const auto &item : op.tensors) roles[nb::str(item.first.c_str())] = nb::str(p.tensors[(size_t)item.second].name.c_str());
        ops.append(nb::make_tuple(nb::str(op.op.c_str()), nb::str(op.name.c_str()), nb::tuple(inputs),
                                  nb::str(p.names[(size_t)op.output].c_str()), python(op.attrs), roles));
    }
    for (const Tensor &tensor : p.tensors)
        tensors.append(nb::make_tuple(nb::str(tensor.name.c_str()), nb::str(name_of(tensor.used_as)), python(tensor.shape), tensor.length,
                                      native.bytes ? (int64_t)(tensor.data - native.bytes) : -1,
                                      nb::str(tensor.scale < 0 ? "" : p.tensors[(size_t)tensor.scale].name.c_str())));
    nb::dict outputs, values;
    for (const Output &output : p.outputs) outputs[nb::str(output.name.c_str())] = nb::str(p.names[(size_t)output.value].c_str());
    for (size_t i = 0; i < p.values.size(); i++)
        values[nb::str(p.names[i].c_str())] = nb::make_tuple(nb::str(name_of(p.values[i].kind)), python(p.values[i].shape));
    out["ops"] = ops, out["tensors"] = tensors, out["outputs"] = outputs, out["values"] = values;
    return out;
}

nb::list steps(const Native &native) {
    static const char *const moves[] = {"affine", "relu", "prelu", "hardtanh", "add_value", "mul_value", "store_float", "store_bits", "curve", "sub_value", "div_value", "offset"};
    const Program &p = native.program;
    const auto name = [&](int value) -> nb::object {
        return value < 0 ? nb::object(nb::none()) : nb::object(nb::str(p.names[(size_t)value].c_str()));
    };
    const auto names = [&](const std::vector<int> &list) {
        nb::list out;
        for (const int value : list) out.append(name(value));
        return nb::tuple(out);
    };
    nb::list out;
    for (const PlanStep &step : make_steps(p)) {
        nb::list epilogue;
        for (const Move &move : step.epilogue) epilogue.append(nb::make_tuple(moves[(size_t)move.kind], move.op, name(move.value), (int)move.spread));
        nb::dict row;
        row["kind"] = step.kind(p), row["op"] = step.op, row["source"] = name(step.source), row["shape"] = python(step.shape);
        row["epilogue"] = epilogue, row["reads"] = names(step.reads), row["writes"] = names(step.writes);
        row["feeds_pool"] = step.feeds_pool, row["joins_pool"] = step.joins_pool, row["bytes"] = step.bytes;
        out.append(row);
    }
    return out;
}

// Offsets and sizes of stored values for an engine with `sizes` bytes for each value, the arena, and what is in place.
nb::tuple plan(const Native &native, const nb::dict &sizes, int64_t align) {
    const Program &p = native.program;
    std::vector<int64_t> bytes;
    for (const std::string &name : p.names) bytes.push_back(nb::cast<int64_t>(sizes[name.c_str()]));
    std::vector<PlanStep> list = make_steps(p);
    const MemoryPlan memory = plan_memory(p, list, [&](int v) { return bytes[(size_t)v]; }, align);
    nb::dict offsets;
    nb::list places;
    for (size_t i = 0; i < p.names.size(); i++)
        if (memory.offset[i] >= 0) offsets[nb::str(p.names[i].c_str())] = memory.offset[i];
    for (const PlanStep &step : list) {
        nb::dict pairs;
        for (const auto &pair : step.in_place)
            pairs[nb::str(p.names[(size_t)pair.first].c_str())] = nb::str(p.names[(size_t)pair.second].c_str());
        places.append(pairs);
    }
    return nb::make_tuple(offsets, memory.arena, places);
}

// Blocks of (bytes, first step, last step, name) -> their offsets, and the bytes of all.
std::pair<std::vector<int64_t>, int64_t> place(const std::vector<std::tuple<int64_t, int, int, std::string>> &rows, int64_t align,
                                               bool centred, const std::vector<std::string> &apart) {
    require(align > 0, "the alignment must be positive");
    std::vector<Block> blocks;
    for (const auto &[bytes, first, last, name] : rows)
        blocks.push_back({bytes, first, last, name, 0, std::find(apart.begin(), apart.end(), name) != apart.end()});
    const int64_t total = place_blocks(blocks, align, centred ? Places::Centred : Places::Lowest);
    std::vector<int64_t> offsets;
    for (const Block &block : blocks) offsets.push_back(block.offset);
    return {offsets, total};
}

template <class T>
nb::object array(std::vector<T> values, std::initializer_list<size_t> shape) {
    auto *kept = new std::vector<T>(std::move(values));
    nb::capsule owner(kept, [](void *p) noexcept { delete (std::vector<T> *)p; });
    return nb::cast(nb::ndarray<nb::numpy, T>(kept->data(), shape, owner));
}

nb::tuple python(ByteFilters f, size_t c, size_t kh, size_t kw) {
    const size_t o = f.scale.size();
    return nb::make_tuple(array(std::move(f.taps), {o, c, kh, kw}), array(std::move(f.mean), {o, kh, kw}), array(std::move(f.rest), {o}),
                          array(std::move(f.scale), {o}));
}

nb::tuple step_filters(const Native &native, size_t index) {
    const Program &p = native.whole();
    const std::vector<PlanStep> list = make_steps(p);
    require(index < list.size() && list[index].op >= 0 && p.ops[(size_t)list[index].op].tensor("weight") >= 0, "that step has no filters");
    const auto kernel = window_of(*p.tensor(p.ops[(size_t)list[index].op], "weight"));
    return python(byte_filters(p, list[index]), (size_t)p.input_shape[0], (size_t)kernel.first, (size_t)kernel.second);
}

nb::tuple rounded(nb::ndarray<const float, nb::ndim<4>, nb::c_contig, nb::device::cpu> w, const std::vector<double> &mean,
                  const std::vector<double> &std, int64_t stride) {
    require(mean.size() == w.shape(1) && std.size() == w.shape(1), "one mean and one std per channel are needed");
    const std::vector<float> values(w.data(), w.data() + w.size());
    ByteFilters f = round_filters(values, (int64_t)w.shape(0), (int64_t)w.shape(1), (int64_t)w.shape(2), (int64_t)w.shape(3), mean, std, stride);
    return python(std::move(f), w.shape(1), w.shape(2), w.shape(3));
}

// One operation by itself: (kind, shape) of its output, and its cost.
nb::tuple infer_one(const std::string &name, const std::string &where, const std::vector<std::pair<std::string, Shape>> &inputs,
                    const std::string &attrs, const nb::list &rows) {
    Operation op;
    op.op = name, op.row = find_operation(name);
    if (!op.row) throw Error(where + ": operation " + quoted(name, 40) + " is unknown to operation set 1");
    op.attrs = parse_json(attrs.data(), attrs.size(), "`attrs`");
    std::vector<Tensor> tensors = tensors_of(rows);
    for (size_t i = 0; i < tensors.size(); i++) op.tensors.emplace_back(tensors[i].name, (int)i);  // named by their roles here
    std::vector<Value> values;
    std::vector<const Value *> pointers;
    for (const auto &[kind, shape] : inputs) values.push_back({kind == "f32" ? Kind::F32 : kind == "bits" ? Kind::Bits : Kind::Int, shape});
    for (size_t i = 0; i < values.size(); i++) pointers.push_back(&values[i]), op.inputs.push_back((int)i);
    int64_t work = 0;
    const Value out = infer(Site{where, op, pointers, tensors, 2}, work);
    return nb::make_tuple(nb::str(name_of(out.kind)), python(out.shape), work);
}

template <class T>
void run(Engine &engine, nb::ndarray<const T, nb::c_contig, nb::device::cpu> x,
         nb::ndarray<float, nb::c_contig, nb::device::cpu> y) {
    const size_t n = x.ndim() ? x.shape(0) : 0;
    require(engine.outputs() == 1 && x.size() == n * engine.input_elements() && y.size() == n * engine.output_elements(0), "wrong batch shape");
    const void *from = x.data();
    float *const to = y.data();
    unlocked([&] { engine.run(from, sizeof(T) == 1, (long)n, &to); });
}

template <class T>
void run_all(Engine &engine, nb::ndarray<const T, nb::c_contig, nb::device::cpu> x,
             const std::vector<nb::ndarray<float, nb::c_contig, nb::device::cpu>> &y) {
    const size_t n = x.ndim() ? x.shape(0) : 0;
    require(x.size() == n * engine.input_elements() && y.size() == engine.outputs(), "wrong batch shape");
    std::vector<float *> to;
    for (size_t i = 0; i < y.size(); i++) {
        require(y[i].size() == n * engine.output_elements(i), "wrong batch shape");
        to.push_back((float *)y[i].data());
    }
    const void *from = x.data();
    unlocked([&] { engine.run(from, sizeof(T) == 1, (long)n, to.data()); });
}

template <class T>
std::vector<double> step_seconds(Engine &engine, nb::ndarray<const T, nb::c_contig, nb::device::cpu> x, bool together) {
    require(x.size() == engine.input_elements(), "one image is timed");
    const void *from = x.data();
    std::vector<double> seconds;
    unlocked([&] {
        seconds = together ? engine.step_seconds_together(from, sizeof(T) == 1) : engine.step_seconds(from, sizeof(T) == 1);
    });
    return seconds;
}

nb::list operations() {
    nb::list out;
    for (const OperationRow &row : operation_set()) {
        nb::list inputs;
        for (const int mask : row.inputs) {
            std::vector<const char *> kinds;
            for (const Kind kind : {Kind::F32, Kind::Bits, Kind::Int})
                if ((int)kind & mask) kinds.push_back(name_of(kind));
            inputs.append(texts(kinds));
        }
        out.append(nb::make_tuple(row.name, nb::tuple(inputs), texts(row.attrs), texts(row.required), texts(row.optional), row.since,
                                  texts(row.more_attrs), row.many, row.shapes));
    }
    return out;
}

}  // namespace

NB_MODULE(_core, m) {
    m.doc() = "The native core of xnorpp.runtime.";
    nb::set_leak_warnings(false);  // a forked child, and a process that ends during a call, leave objects behind
    nb::register_exception_translator(
        [](const std::exception_ptr &pointer, void *) {
            try {
                std::rethrow_exception(pointer);
            } catch (const LimitError &error) {
                const std::string advice = "; pass limits=Limits(" + std::string(error.limit) + "=...) with a larger number to `load`";
                PyErr_SetString(error_class ? error_class : PyExc_ValueError, (error.what() + advice).c_str());
            } catch (const Error &error) {
                PyErr_SetString(error_class ? error_class : PyExc_ValueError, error.what());
            }
        },
        nullptr);
    m.def("raise_as", [](nb::object cls) { error_class = cls.release().ptr(); }, "The exception that the core's errors become.");
    m.def("available_isas", &available_isas, "Names of the kernels built and detected, in the order of choice.");
    m.def("isa_table", [] {
        std::vector<std::tuple<std::string, bool, bool>> rows;
        for (const IsaRow &row : isa_table())
            rows.emplace_back(row.name, row.kernels != nullptr, row.kernels != nullptr && row.detected());
        return rows;
    }, "(name, built, detected) of every row of the dispatch table.");
    m.def("core_distance", [](int first, int second) {
        double nanoseconds = -1;
        unlocked([&] { nanoseconds = core_distance(first, second); });
        return nanoseconds;
    }, "Nanoseconds for a cache line from one core to another; below 0 where it cannot be measured.");
    m.def("operations", &operations, "(name, inputs, attributes, required and optional tensors) of the operation set.");
    m.def("engine_operations", &engine_operations, "The operations that the CPU engine covers.");
    m.def("infer", &infer_one);
    m.def("place", &place, nb::arg("blocks"), nb::arg("align"), nb::arg("centred") = false, nb::arg("apart") = nb::list());
    m.def("round_filters", &rounded);
    nb::class_<FileMemory>(m, "FileMemory")
        .def(nb::init<size_t>())
        .def_prop_ro("bytes", [](const FileMemory &f) { return nb::ndarray<nb::numpy, uint8_t>(f.data(), {f.size()}); },
                     nb::rv_policy::reference_internal)
        .def("hold", &FileMemory::hold);
    nb::class_<Native>(m, "Program")
        .def_static("read", &read_file, nb::arg("file"), nb::arg("file_bytes") = kMostFile)
        .def_static("read_memory", &read_memory, nb::arg("memory"), nb::arg("size"), nb::arg("file_bytes") = kMostFile)
        .def_static("build", &build, nb::arg("text"), nb::arg("version"), nb::arg("tensors"))
        .def("describe", &describe)
        .def("steps", &steps)
        .def("plan", &plan)
        .def("byte_step", [](const Native &n, const std::string &rule) {
            const ByteRule which = rule == "any" ? ByteRule::Any : rule == "large" ? ByteRule::Large : ByteRule::Stated;
            return byte_step(n.whole(), make_steps(n.program), which);
        })
        .def("byte_filters", &step_filters)
        .def("with_input", [](const Native &n, const Shape &shape) {
            auto other = std::make_unique<Native>();
            other->program = with_input(n.whole(), shape);
            other->owner = n.owner, other->bytes = n.bytes, other->memory = n.memory;
            return other;
        })
        .def("check_limits", [](const Native &n, const LimitNumbers &limits) { check_limits(n.program, limits_of(limits)); })
        .def_prop_ro("image_work", [](const Native &n) { return image_work(n.program); })
        .def_prop_ro("only_filters_read_input", [](const Native &n) { return only_filters_read_input(n.program, make_steps(n.program)); })
        .def_prop_ro("units", [](const Native &n) { return units_of(n.program, make_steps(n.program)); })
        .def_prop_ro("released", [](const Native &n) { return n.memory ? n.memory->released() : 0; })
        .def_prop_ro("threads_worth", [](const Native &n) { return threads_worth(n.program); });
    nb::class_<Engine>(m, "Engine")
        .def(nb::new_(&start_engine), nb::arg("program"), nb::arg("isa"), nb::arg("threads"), nb::arg("share"), nb::arg("limits"))
        .def_prop_ro("isa", [](const Engine &e) { return std::string(e.kernels().name); })
        .def_prop_ro("memory", &Engine::memory)
        .def("step_seconds", &step_seconds<uint8_t>, nb::arg("x"), nb::arg("together") = false)
        .def("step_seconds", &step_seconds<float>, nb::arg("x"), nb::arg("together") = false)
        .def("run", &run<uint8_t>)
        .def("run", &run<float>)
        .def("run_all", &run_all<uint8_t>)
        .def("run_all", &run_all<float>);
}
