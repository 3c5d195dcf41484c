// Hands the steps of a plan to the engine: one function for each kind of producer that the engine has kernels for
// (`kProducers`; the others have plain functions in their rows, plain/plain.h), one case for each move.
// Layouts: a float value is (h, w, c) with the channels of a pixel rounded up to 16, a bit value has 32-bit words per pixel. An
// input that only filters read has no padding channels: a row is then one run of numbers.
#include "model.h"

#include <algorithm>

#include "joins.h"
#include "plain/moved.h"
#include "program/operations.h"
#include "program/plan.h"
#include "program/stem.h"

namespace xnorpp {
namespace {

constexpr int kPiece = 4096;  // numbers of a piece of a plain function that asks for no other size

int stride_of(const Value &value) {  // floats of a pixel, or bytes of a pixel for bits
    const int c = (int)value.channels();
    return value.kind == Kind::Bits ? (c + 31) / 32 * 4 : (c + 15) / 16 * 16;
}

class Builder {
  public:
    Builder(Engine &engine, const Program &p, std::vector<PlanStep> steps) : engine_(engine), p_(p), steps_(std::move(steps)) {}

    void build(const Limits &limits, Releases *releases) {
        chains_ = join_moves(p_, steps_);
        values_ = merge_axes(p_, steps_, chains_);
        const bool tight = only_filters_read_input(p_, steps_);
        const Joins joins = join_parts(p_, steps_, 16);
        const auto stride = [&](int v) {
            return v == 0 && tight ? (int)values_[0].channels() : stride_of(values_[(size_t)joins.root(v)]);
        };
        std::vector<bool> passing(values_.size());  // between a convolution and its pool: never in the arena
        for (const PlanStep &step : steps_)
            if (step.joins_pool) passing[(size_t)step.writes[0]] = true;
        const MemoryPlan plan = plan_memory(p_, steps_, [&](int v) -> int64_t {
            if (passing[(size_t)v]) return 64;
            const Extent e = extent_of(values_[(size_t)v].shape);
            return (int64_t)e.h * e.w * stride(v) * (values_[(size_t)v].kind == Kind::Bits ? 1 : 4);
        }, 64, &joins, engine_.threads() > 1 ? Places::Centred : Places::Lowest, kFewRows * engine_.threads());
        if ((uint64_t)plan.arena > limits.memory_bytes)
            throw beyond_limit("at least " + std::to_string(plan.arena) + " bytes of memory", "memory_bytes", limits.memory_bytes);
        ids_.assign(values_.size(), -1);
        for (size_t v = 0; v < ids_.size(); v++)
            if (plan.offset[v] >= 0) {
                const Extent e = extent_of(values_[v].shape);
                ids_[v] = engine_.add_value({values_[v].kind == Kind::Bits, e.c, e.h, e.w, stride((int)v), (size_t)plan.offset[v]});
            }
        bool bytes = false;
        for (size_t i = 0; i < steps_.size(); i++) add(steps_[i], chains_[i]), bytes |= steps_[i].bytes;
        std::vector<int> outputs;
        for (const Output &output : p_.outputs) outputs.push_back(id(output.value));
        engine_.finish(id(0), outputs, (size_t)plan.arena, bytes ? std::vector<float>() : table(), releases);
    }

    const Operation &op(const PlanStep &step) const { return p_.ops[(size_t)step.op]; }
    int id(int value) const { return ids_[(size_t)value]; }
    const ValueSpec &input(const Step &step) const { return engine_.value(step.in); }

    ConvSpec geometry(const Operation &o, const ValueSpec &v, bool bits) const {
        const Tensor &weight = *p_.tensor(o, "weight");
        ConvSpec s{v.c, v.h, v.w, (int)weight.shape[0], 1, 1, 1, 1, 0, 0, 1, 1, 1, 0, bits ? v.stride / 4 : v.stride};
        if (weight.shape.size() == 4) {  // a linear layer is a 1x1 window on a 1x1 image
            const auto kernel = window_of(weight);
            s.kh = (int)kernel.first, s.kw = (int)kernel.second;
            s.sh = o.integer("stride", 0), s.sw = o.integer("stride", 1);
            s.ph = o.integer("padding", 0), s.pw = o.integer("padding", 1);
            s.dh = o.integer("dilation", 0), s.dw = o.integer("dilation", 1);
            s.groups = o.integer("groups");
            if (bits) s.pad_value = o.integer("pad_value");
        }
        return s;
    }

    void filter(const PlanStep &from, Step &step) const {
        const Operation &o = op(from);
        const Tensor &weight = *p_.tensor(o, "weight");
        const bool bits = values_[(size_t)from.source].kind == Kind::Bits;
        const ConvSpec s = geometry(o, input(step), bits);
        step.kind = StepKind::Conv;
        step.feeds_pool = from.joins_pool;
        if (bits) {
            step.conv = std::make_unique<ConvStore>(build_bit_conv(engine_.kernels(), engine_.budget(), s, weight.data));
            may_go(weight, o, *step.conv);
            return;
        }
        const Tensor *bias = p_.tensor(o, "bias");
        const std::vector<float> summand = bias ? floats_of(*bias) : std::vector<float>();
        const float *b = bias ? summand.data() : nullptr;
        const float *stored = plain_floats(weight);
        step.conv = std::make_unique<ConvStore>(
            build_float_conv(engine_.kernels(), engine_.budget(), s, [this, &o] { return real_filters(p_, o); }, stored, b));
        if (stored) may_go(weight, o, *step.conv);
        if (from.bytes) {
            const ByteFilters f = byte_filters(p_, from);
            const ImageSpec spec{f.taps.data(), f.mean.data(), f.rest.data(), f.scale.data()};
            step.image = std::make_unique<ConvStore>(build_image_conv(engine_.kernels(), engine_.budget(), s, spec, b));
        }
    }

    void whole(const PlanStep &from, Step &step) const {
        const Operation &o = op(from);
        const WholeFilters f = whole_filters(p_, o);
        const Tensor *bias = p_.tensor(o, "bias");
        const std::vector<float> summand = bias ? floats_of(*bias) : std::vector<float>();
        const WholeSpec spec{[this, &o] { return whole_taps(p_, o); }, f.scale.data(), f.steps, f.limit};
        step.kind = StepKind::Conv;
        step.conv = std::make_unique<ConvStore>(
            build_whole_conv(engine_.kernels(), engine_.budget(), geometry(o, input(step), false), spec, bias ? summand.data() : nullptr));
    }

    void pool(const PlanStep &from, Step &step) const {
        const Operation &o = op(from);
        const ValueSpec &v = input(step);
        const Json *include = o.attrs.find("count_include_pad");
        const bool box = o.attrs.find("dilation") != nullptr;
        const int dh = box ? o.integer("dilation", 0) : 1, dw = box ? o.integer("dilation", 1) : 1;
        step.kind = o.op == "max_pool2d" ? StepKind::MaxPool : box ? StepKind::BoxFilter : StepKind::AvgPool;
        step.pool = {v.c, v.h, v.w, step.h, step.w, o.integer("kernel", 0), o.integer("kernel", 1), o.integer("stride", 0),
                     o.integer("stride", 1), o.integer("padding", 0), o.integer("padding", 1), dh, dw,
                     step.kind == StepKind::MaxPool, include && include->boolean, box};
    }

    void pad(const PlanStep &from, Step &step) const {
        step.kind = StepKind::Pad;
        for (size_t i = 0; i < 6; i++) step.pad[i] = op(from).integer("padding", i);
        step.pad_value = (float)op(from).attrs.find("value")->number();
    }

    template <StepKind kind>
    void single(const PlanStep &, Step &step) const {
        step.kind = kind;
    }

    // An operation in plain C++ (plain/plain.h).
    void plain(const PlanStep &from, Step &step, const OperationRow &row) const {
        const Operation &o = op(from);
        step.kind = StepKind::Plain;
        for (size_t i = 0; i < row.read(o.inputs.size()); i++) {
            const int input = o.inputs[i];
            step.inputs.push_back(id(input));
            step.views.push_back(view_of(values_[(size_t)input], engine_.value(id(input)).stride));
        }
        const int stride = (int)round_up((size_t)step.c, 16);
        step.views.push_back(view_of(values_[(size_t)o.output], stride));
        step.plain = row.make({p_, o, engine_.kernels(), engine_.budget(), values_});
        const int pixels = step.h * step.w, wanted = step.plain.grain ? step.plain.grain : kPiece / stride;
        step.plain.grain = std::max(1, std::min(pixels, wanted));
    }

    // A copy, for a whole chain of moves.
    void moved(const PlanStep &from, const MoveChain &chain, Step &step) const {
        step.kind = StepKind::Plain;
        step.inputs = {step.in};
        step.views = {view_of(values_[(size_t)from.source], input(step).stride), view_of({Kind::F32, from.shape}, (int)round_up((size_t)step.c, 16))};
        Moved places(step.views[0]);
        for (const MoveLink &link : chain) link.op < 0 ? places.reshape(link.shape) : places.apply(p_.ops[(size_t)link.op], link.shape);
        step.plain = places.copy(step.views[1], engine_.kernels());
    }

  private:
    void add(const PlanStep &from, const MoveChain &chain);

    // What each byte stands for, in every channel; one column where all channels are alike.
    std::vector<float> table() const {
        size_t c = 1;
        for (size_t i = 0; i < p_.mean.size(); i++)
            if (p_.mean[i] != p_.mean[0] || p_.std[i] != p_.std[0]) c = p_.mean.size();
        engine_.budget().take(256 * c * 4);
        std::vector<float> out(256 * c);
        for (size_t byte = 0; byte < 256; byte++)
            for (size_t i = 0; i < c; i++) out[byte * c + i] = ((float)byte / 255.0f - (float)p_.mean[i]) / (float)p_.std[i];
        return out;
    }

    // A tensor whose bytes are floats as they are, or null.
    static const float *plain_floats(const Tensor &tensor) {
        const bool plain = tensor.encoding == Encoding::Float32 && tensor.scale < 0 && (uintptr_t)tensor.data % alignof(float) == 0;
        return plain ? (const float *)tensor.data : nullptr;
    }

    // Filters that one operation alone has need not stay where they are once they are packed.
    void may_go(const Tensor &weight, const Operation &owner, ConvStore &store) const {
        const int tensor = owner.tensor("weight");
        int uses = 0;
        for (const Operation &o : p_.ops)
            for (const auto &item : o.tensors) uses += item.second == tensor;
        if (uses == 1) store.stored = weight.data, store.stored_bytes = weight.bytes;
    }

    Buffer buffer_of(const std::vector<float> &values) const {  // with room to whole vectors of channels
        engine_.budget().take(round_up(values.size(), 64) * 4);
        Buffer buffer(round_up(values.size(), 64) * 4);
        std::memcpy(buffer.as(), values.data(), values.size() * 4);
        return buffer;
    }

    std::vector<float> floats(const Operation &o, const char *role, size_t count, float missing) const {
        const Tensor *tensor = p_.tensor(o, role);
        if (!tensor) return std::vector<float>(count, missing);
        std::vector<float> values = floats_of(*tensor);
        if (values.size() != count) values.assign(count, values[0]);  // one number for all channels
        return values;
    }

    // The spatial factor of an operation: one number per pixel in `map`, or one per pixel and channel in `full`.
    void factor(const Operation &o, const Step &step, Buffer &map, Buffer &full) const {
        const Tensor *row = p_.tensor(o, "row"), *whole = p_.tensor(o, "full");
        const size_t c = (size_t)step.c, h = (size_t)step.h, w = (size_t)step.w;
        if (whole) {
            const std::vector<float> from = floats_of(*whole);
            const size_t stride = round_up(c, 16);
            std::vector<float> to(h * w * stride);
            for (size_t i = 0; i < c; i++)
                for (size_t at = 0; at < h * w; at++) to[at * stride + i] = from[i * h * w + at];
            full = buffer_of(to);
        } else if (row) {
            const std::vector<float> rows = floats_of(*row), cols = floats_of(*p_.tensor(o, "col"));
            std::vector<float> to(h * w);
            for (size_t y = 0; y < h; y++)
                for (size_t x = 0; x < w; x++) to[y * w + x] = rows[y] * cols[x];
            map = buffer_of(to);
        } else if (const Tensor *tensor = p_.tensor(o, "map")) {
            map = buffer_of(floats_of(*tensor));
        }
    }

    // A constant summand for each pixel and channel, or for each channel where that is all it depends on.
    Buffer constant_of(const Operation &o, const Step &step, Spread &spread) const {
        const Tensor &tensor = *p_.tensor(o, "value");
        const std::vector<float> from = floats_of(tensor);
        const Shape &shape = p_.values[(size_t)o.output].shape;
        // The axes that are channels here, and those that are pixels.
        const size_t lead = values_[(size_t)o.output].shape.size() == shape.size() ? 1 : shape.size() - 2;
        spread = std::all_of(tensor.shape.begin() + (std::ptrdiff_t)lead, tensor.shape.end(), [](int64_t n) { return n == 1; }) ? Spread::Channel : Spread::Each;
        const size_t stride = round_up((size_t)step.c, 16), pixels = spread == Spread::Channel ? 1 : (size_t)step.h * step.w;
        std::vector<float> to(pixels * stride);
        for (size_t pixel = 0; pixel < pixels; pixel++)
            for (size_t c = 0; c < (size_t)step.c; c++) {
                size_t at = 0, rest = pixel, channel = c;
                size_t place[8] = {};
                for (size_t axis = shape.size(); axis-- > lead; rest /= (size_t)shape[axis]) place[axis] = rest % (size_t)shape[axis];
                for (size_t axis = lead; axis-- > 0; channel /= (size_t)shape[axis]) place[axis] = channel % (size_t)shape[axis];
                for (size_t axis = 0; axis < shape.size(); axis++)
                    at = at * (size_t)tensor.shape[axis] + (tensor.shape[axis] == 1 ? 0 : place[axis]);
                to[pixel * stride + c] = from[at];
            }
        return buffer_of(to);
    }

    void stage(const Move &move, Step &step) const {
        StageSpec s;
        s.value = move.value >= 0 ? id(move.value) : -1;
        s.spread = move.spread;
        s.which = move.kind != MoveKind::MulValue && (move.spread == Spread::Pixel || move.spread == Spread::One);
        const Operation *o = move.op >= 0 ? &p_.ops[(size_t)move.op] : nullptr;
        const size_t c = (size_t)step.c;
        switch (move.kind) {
            case MoveKind::Affine: {
                StageSpec spatial;
                Buffer map, full;
                factor(*o, step, map, full);
                if (map.as() || full.as()) {
                    spatial.kind = map.as() ? StageKind::Map : StageKind::Full;
                    spatial.a = std::move(map.as() ? map : full);
                    step.stages.push_back(std::move(spatial));
                }
                if (o->tensor("mult") < 0 && o->tensor("add") < 0) return;
                s.kind = StageKind::Affine;
                s.a = buffer_of(floats(*o, "mult", c, 1)), s.b = buffer_of(floats(*o, "add", c, 0));
                break;
            }
            case MoveKind::Relu: s.kind = StageKind::Relu; break;
            case MoveKind::Prelu: s.kind = StageKind::Prelu, s.a = buffer_of(floats(*o, "slope", c, 0)); break;
            case MoveKind::Hardtanh:
                s.kind = StageKind::Hardtanh;
                s.lo = (float)o->attrs.find("min")->number(), s.hi = (float)o->attrs.find("max")->number();
                break;
            case MoveKind::AddValue: s.kind = StageKind::AddValue; break;
            case MoveKind::SubValue: s.kind = StageKind::SubValue; break;
            case MoveKind::DivValue: s.kind = StageKind::DivValue; break;
            case MoveKind::MulValue:
                s.kind = move.spread == Spread::Pixel || move.spread == Spread::One ? StageKind::MulPixel : StageKind::MulValue;
                break;
            case MoveKind::Curve:
                s.kind = StageKind::Curve, s.which = curve_of(o->op);
                if (o->attrs.find("alpha")) s.lo = (float)o->attrs.find("alpha")->number();
                break;
            case MoveKind::Offset: s.kind = StageKind::AddValue, s.full = constant_of(*o, step, s.spread); break;
            case MoveKind::StoreFloat: s.kind = StageKind::Store; break;
            case MoveKind::StoreBits: {  // a flipped channel compares -v > -t: the kernels xor `flip` into v
                s.kind = StageKind::Sign;
                std::vector<float> threshold = floats(*o, "threshold", c, 0);
                const Tensor *flip = p_.tensor(*o, "flip");
                s.flip = Buffer(round_up(c, 64) * 4);
                for (size_t i = 0; i < c; i++)
                    if (flip && flip->data[i]) threshold[i] = -threshold[i], s.flip.as<uint32_t>()[i] = 0x80000000u;
                s.a = buffer_of(threshold);
                factor(*o, step, s.map, s.full);
                break;
            }
        }
        step.stages.push_back(std::move(s));
    }

    Engine &engine_;
    const Program &p_;
    std::vector<PlanStep> steps_;
    std::vector<MoveChain> chains_;  // of each step
    std::vector<Value> values_;      // as they are stored
    std::vector<int> ids_;           // of values in the engine
};

struct Producer {
    const char *op;
    void (Builder::*build)(const PlanStep &, Step &) const;
};
const Producer kProducers[] = {
    {"conv2d", &Builder::filter},
    {"linear", &Builder::filter},
    {"int_conv2d", &Builder::whole},
    {"binary_conv2d", &Builder::filter},
    {"binary_linear", &Builder::filter},
    {"bitweight_conv2d", &Builder::filter},
    {"bitweight_linear", &Builder::filter},
    {"max_pool2d", &Builder::pool},
    {"avg_pool2d", &Builder::pool},
    {"box_filter", &Builder::pool},
    {"pad2d", &Builder::pad},
    {"global_avg_pool", &Builder::single<StepKind::GlobalMean>},
    {"abs_mean", &Builder::single<StepKind::AbsMean>},
    {"flatten", &Builder::single<StepKind::Flatten>},
    {"softmax", &Builder::single<StepKind::Softmax>},
    {"signs", &Builder::single<StepKind::Signs>},
    {"pointwise", &Builder::single<StepKind::Pointwise>},
};
// Operations that are moves of an epilogue: `Builder::stage` has a case for each.
const char *const kMoves[] = {"affine", "relu", "prelu", "hardtanh", "add", "mul", "sign", "sub", "div", "offset"};

void Builder::add(const PlanStep &from, const MoveChain &chain) {
    const char *kind = from.kind(p_);
    const auto *row = std::find_if(std::begin(kProducers), std::end(kProducers), [&](const Producer &p) { return !std::strcmp(p.op, kind); });
    // Softmax along an axis is a plain function; of a vector it has its own step.
    const bool along = from.op >= 0 && op(from).attrs.find("axis");
    const OperationRow *other = row == std::end(kProducers) || along ? find_operation(kind) : nullptr;
    if (other && !other->make) other = nullptr;
    if (row == std::end(kProducers) && !other) throw Error("the CPU engine has no operation " + quoted(kind, 40));
    Step step;
    const Extent e = extent_of(from.shape);
    step.in = id(from.source);
    step.c = e.c, step.h = e.h, step.w = e.w;
    if (!chain.empty()) moved(from, chain, step);
    else if (other) plain(from, step, *other);
    else (this->*row->build)(from, step);
    for (const Move &move : from.epilogue) stage(move, step);
    if (step.kind == StepKind::Pointwise && from.epilogue.empty()) step.kind = StepKind::Nothing;  // a concatenation in place
    engine_.add_step(std::move(step));
}

}  // namespace

std::unique_ptr<Engine> make_engine(const Program &program, const std::string &isa, int threads, double share, const Limits &limits,
                                    Releases *releases) {
    check_limits(program, limits);
    auto engine = std::make_unique<Engine>(isa, threads, share, limits.memory_bytes);
    try {
        Builder(*engine, program, make_steps(program)).build(limits, releases);
    } catch (const std::bad_alloc &) {
        throw Error("this program cannot be run here: there is not enough memory");
    } catch (const std::length_error &error) {
        throw Error(std::string("this program cannot be run here: ") + error.what());
    }
    engine->start();
    return engine;
}

double threads_worth(const Program &program) { return units_of(program, make_steps(program)) / kUnitsPerThread; }

std::vector<std::string> engine_operations() {
    std::vector<std::string> names(std::begin(kMoves), std::end(kMoves));
    for (const Producer &row : kProducers)
        if (std::strcmp(row.op, "pointwise") != 0) names.push_back(row.op);
    for (const OperationRow &row : operation_set())
        if (row.make) names.push_back(row.name);
    names.insert(names.end(), curves().begin(), curves().end());
    std::sort(names.begin(), names.end());
    names.erase(std::unique(names.begin(), names.end()), names.end());
    return names;
}

}  // namespace xnorpp
