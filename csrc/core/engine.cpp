#include "engine.h"

#include "../kernels/dispatch.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <ctime>
#include <stdexcept>

namespace xnorpp {
namespace {

double wall() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

double processor_time() {  // of this thread; by the clock on the wall where the system does not count it
#if defined(__linux__) || defined(__APPLE__)
    timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
#else
    return wall();
#endif
}

}  // namespace

Engine::Engine(const std::string &isa, int threads, double share, size_t memory)
    : kernels_(choose_kernels(isa)), threads_(threads), share_(share), budget_(memory), resources_(nullptr) {
    if (threads < 1) throw std::invalid_argument("`threads` (=" + std::to_string(threads) + ") must be at least 1");
    require_counted_forks();
    resources_ = new Resources;
}

Engine::~Engine() {
    Resources *own = resources_.load();
    if (own->process == forks()) delete own;
}

Resources &Engine::resources() const {
    Resources *own = resources_.load(std::memory_order_acquire);
    if (own->process == forks()) return *own;
    auto fresh = std::make_unique<Resources>();  // the first call in a forked child, or several first ones at once
    return resources_.compare_exchange_strong(own, fresh.get()) ? *fresh.release() : *own;
}

// The threads, or null: an engine for one thread, or a forked child that cannot have more.
ThreadPool *Engine::pool() const {
    if (threads_ == 1) return nullptr;
    Resources &own = resources();
    if (ThreadPool *ready = own.pool.load(std::memory_order_acquire)) return ready;
    Lock lock(own.mutex);
    if (!own.threads && !own.alone) {
        try {
            own.threads = std::make_unique<ThreadPool>(threads_);
        } catch (const std::exception &) {
            own.alone = true;  // the answers are the same
        }
        own.pool.store(own.threads.get(), std::memory_order_release);
    }
    return own.threads.get();
}

void Engine::start() {
    if (threads_ == 1) return;
    Resources &own = resources();
    Lock lock(own.mutex);
    if (own.threads) return;
    own.threads = std::make_unique<ThreadPool>(threads_);
    own.pool.store(own.threads.get(), std::memory_order_release);
}

int Engine::add_value(const ValueSpec &value) {
    values_.push_back(value);
    return (int)values_.size() - 1;
}

void Engine::add_step(Step step) { steps_.push_back(std::move(step)); }

bool Engine::fuses_pool(size_t index) const {
    const Step &step = steps_[index];
    if (!step.feeds_pool) return false;
    const bool possible = step.kind == StepKind::Conv && index + 1 < steps_.size() &&
                          steps_[index + 1].kind == StepKind::MaxPool && is_fusable(step.stages);
    if (!possible) throw std::logic_error("a convolution cannot run together with the step behind it");
    return true;
}

void Engine::finish(int input, std::vector<int> outputs, size_t arena_bytes, std::vector<float> table, Releases *releases) {
    input_ = input, outputs_ = std::move(outputs), table_ = std::move(table);
    arena_bytes_ = arena_bytes;
    const size_t values = table_.size(), channels = (size_t)values_.at((size_t)input).c;
    if (values && values != 256 && values != 256 * channels) throw std::logic_error("the table of bytes has a wrong size");
    if (kernels_.limits)
        for (Step &step : steps_) make_limits(step), budget_.take(step.limits.size());
    fused_pool_.assign(steps_.size(), false);
    for (size_t i = 0; i < steps_.size(); i++) fused_pool_[i] = fuses_pool(i);
    for (size_t i = 0; i < steps_.size(); i++)
        if (fused_pool_[i]) make_toward(steps_[i], steps_[i + 1]);
    for (size_t i = 0; i < values_.size(); i++) {
        bool passing = false;  // between a convolution and its pool: never in the arena
        for (size_t j = 0; j + 1 < steps_.size(); j++) passing |= fused_pool_[j] && steps_[j + 1].in == (int)i;
        const ValueSpec &v = values_[i];
        // The last pixel of a part of a larger value ends before the larger one's does.
        const size_t last = v.bits ? (size_t)v.stride : round_up((size_t)v.c, 16) * 4, step = (size_t)v.stride * (v.bits ? 1 : 4);
        const size_t bytes = passing ? 0 : (size_t)(v.pixels() - 1) * step + (last < step ? last : step);
        if (v.offset + bytes > arena_bytes) throw std::logic_error("a value lies outside the arena");
    }
    for (size_t i = 0; i < steps_.size(); i++) {
        const size_t need = scratch_bytes(i);
        scratch_bytes_ = need > scratch_bytes_ ? need : scratch_bytes_;
    }
    budget_.take(arena_bytes_);
    for (int i = 0; i < threads_; i++) budget_.take(scratch_bytes_);
    pack_weights(releases);
    for (size_t i = 0; i < steps_.size(); i++) splits_.push_back(split_of(i));
    splits_.push_back({values_[(size_t)input].h, By::Row, values_[(size_t)input].h});
    give_context(take_context());
}

constexpr size_t kLargeFilters = (size_t)1 << 20;  // bytes of panels

// All weight panels side by side in one block, in the order of the steps. Large filters that are made for it are in memory twice
// for that moment: they come first, while the pages of the others are not yet taken. The others are read where they are and may
// go then, from the end of the block, whose last pages are small ones, to its begin, so that a large page fills up at once.
void Engine::pack_weights(Releases *releases) {
    std::vector<std::pair<ConvStore *, size_t>> stores;
    size_t bytes = 0;
    for (Step &step : steps_)
        for (ConvStore *conv : {step.image.get(), step.conv.get()})
            if (conv) stores.emplace_back(conv, bytes), bytes += round_up(conv->weight_bytes, kLine) + kLine;  // a line of slack behind each
    weights_ = std::make_shared<Buffer>(bytes);
    const auto made = [](const auto &row) { return row.first->unpack || row.first->weight_bytes < kLargeFilters ? 0 : row.first->weight_bytes; };
    std::stable_sort(stores.begin(), stores.end(), [&](const auto &a, const auto &b) {
        return made(a) != made(b) ? made(a) > made(b) : a.second > b.second;
    });
    for (const auto &row : stores) {
        ConvStore &store = *row.first;
        char *panels = weights_->as() + row.second;
        const bool goes = releases && store.stored && store.unpack &&
                          releases->release(store.stored, store.stored_bytes, [weights = weights_, panels, conv = store.conv, unpack = store.unpack](uint8_t *to) {
                              unpack(conv, panels, to);
                          });
        store.take_weights(panels, [&](size_t begin, size_t end) {
            if (goes) releases->drop(store.stored + begin, end - begin);
        });
        store.unpack = nullptr;
    }
}

size_t Engine::scratch_bytes(size_t index) const {
    const Step &step = steps_[index];
    const size_t stride = round_up((size_t)step.c, 16), wide = (size_t)values_[(size_t)step.in].stride;
    const bool pools = step.kind == StepKind::MaxPool || step.kind == StepKind::AvgPool || step.kind == StepKind::BoxFilter;
    size_t bytes = round_up((size_t)step.w * (pools && wide > stride ? wide : stride) * 4, kLine) + kLine;
    if (step.kind == StepKind::Flatten || step.kind == StepKind::Softmax) bytes = round_up(stride * 4, kLine) + kLine;
    if (step.kind == StepKind::Plain) bytes = round_up((size_t)step.plain.grain * stride * 4, kLine) + round_up(step.plain.scratch, kLine) + kLine;
    for (const auto *conv : {step.conv.get(), step.image.get()})
        if (conv) {
            const size_t need = scratch_of(kernels_, *conv);
            bytes = need > bytes ? need : bytes;
        }
    if (fused_pool_[index]) {  // a ring of rows and a row of the pool beside the convolution's own
        const Step &next = steps_[index + 1];
        bytes += round_up((size_t)next.pool.kh * step.w * stride * 4, kLine) + round_up((size_t)next.w * stride * 4, kLine) + 4 * kLine;
        if (step.toward.as()) bytes += (size_t)ring_of_sums(step.image->conv) * next.w * stride * 4;
    }
    return bytes;
}

std::unique_ptr<Context> Engine::take_context() {
    Resources &own = resources();
    {
        Lock lock(own.mutex);
        if (!own.free.empty()) {
            auto context = std::move(own.free.back());
            own.free.pop_back();
            return context;
        }
        own.made++;
        own.free.reserve(own.made);  // giving it back takes no memory
    }
    auto context = std::make_unique<Context>();
    context->arena = Buffer(arena_bytes_);
    for (int i = 0; i < threads_; i++) context->scratch.emplace_back(scratch_bytes_);
    context->board = std::make_unique<Board>((int)splits_.size(), threads_);
    context->stages.resize(steps_.size());
    for (size_t i = 0; i < steps_.size(); i++) {
        context->stages[i].reserve(steps_[i].stages.size());
        context->epilogues.push_back(resolve(steps_[i], context->arena.as(), context->stages[i]));
    }
    return context;
}

void Engine::give_context(std::unique_ptr<Context> context) {
    Resources &own = resources();
    Lock lock(own.mutex);
    own.free.push_back(std::move(context));
}

size_t Engine::memory() const {
    Resources &own = resources();
    size_t bytes = weights_->size();
    {
        Lock lock(own.mutex);
        bytes += own.made * (arena_bytes_ + (size_t)threads_ * scratch_bytes_);
    }
    for (const Step &step : steps_) {
        for (const auto *conv : {step.conv.get(), step.image.get()})
            if (conv) bytes += conv->base.size() + conv->offset.size() + conv->scale.size();
        bytes += step.limits.size() + step.turn.size() + step.toward.size();
        for (const StageSpec &s : step.stages) bytes += s.a.size() + s.b.size() + s.map.size() + s.full.size() + s.flip.size();
    }
    return bytes;
}

constexpr int kMeans = 64;  // channels of a piece of a global mean

// A convolution is cut into rows where every thread gets as many, or nearly: a thread then reads mostly what it wrote itself,
// where blocks of channels read every channel of all others. Where rows and threads do not go together, some channels get a row
// more than others. One of few pixels is cut into blocks alone, whose many weights a thread finds in its own cache at the next
// call.
Split Engine::split_of(size_t index) const {
    const Step &step = steps_[index];
    if (fused_pool_[index]) return {steps_[index + 1].h, By::Row, step.toward.as() && step.image->conv.eight ? 2 : 1};
    if (step.kind == StepKind::GlobalMean && step.c % kMeans == 0 && step.stages.size() == 1 && step.stages[0].kind == StageKind::Store)
        return {step.c / kMeans, By::Row, 1, kMeans};
    if (step.kind == StepKind::GlobalMean || step.kind == StepKind::Flatten || step.kind == StepKind::Softmax || step.kind == StepKind::Nothing) return {};
    if (step.kind == StepKind::Plain) {
        const int pieces = (step.h * step.w + step.plain.grain - 1) / step.plain.grain;
        return {pieces, By::Row, pieces};
    }
    if (step.kind != StepKind::Conv) return {step.h, By::Row, step.h};
    const Conv &k = step.conv->conv;
    int blocks = k.blocks;
    const bool whole = blocks % kernels_.blocks == 0 && blocks / kernels_.blocks >= threads_;
    const int width = step.conv->source == Source::Bits && whole ? kernels_.blocks : 1;
    blocks /= width;
    const double row_waste = (double)((k.oh + threads_ - 1) / threads_) * threads_ / k.oh;
    const double block_waste = (double)((blocks + threads_ - 1) / threads_) * threads_ / blocks;
    const bool few = k.oh * k.ow < kFewPixels * threads_;
    if (row_waste < block_waste || (row_waste == block_waste && !few)) return {k.oh, By::Row, k.band};
    const int most = (k.oh + threads_ - 1) / threads_;  // rows of a thread
    const bool pointwise = step.conv->source == Source::Float && k.kh == 1 && k.kw == 1 && k.sh == 1 && k.sw == 1;  // nothing is prepared
    if (!few && k.groups == 1 && blocks >= threads_ && (pointwise || k.band >= most)) return {threads_ * blocks, By::Both, blocks, width};
    return {blocks * ((k.oh + k.band - 1) / k.band), By::Block, blocks, width};
}

void Engine::answer(const Call &call) const {
    for (size_t i = 0; i < outputs_.size(); i++) {
        const ValueSpec &v = values_[(size_t)outputs_[i]];
        const float *from = (const float *)(call.context->arena.as() + v.offset);
        const int pixels = v.pixels();
        kernels_.transpose(from, (size_t)v.stride, pixels, v.c, call.y[i] + (size_t)call.image * v.c * pixels, (size_t)pixels);
    }
}

// The first convolution may read the bytes of an image themselves.
bool Engine::brings_in(const Call &call) const { return !call.bytes || !table_.empty(); }

// The way through the network of a thread by itself.
void Engine::walk(const Call &call) const {
    if (brings_in(call)) image_in(call, Pieces(splits_.back().count));
    for (size_t i = 0; i < steps_.size(); i++) run_step(call, i, 0, Pieces(splits_[i].count));
    answer(call);
}

// The way of one of several threads: each goes on to the next step when all pieces of the one before are done.
void Engine::walk_together(const Call &call, int thread) const {
    Board &board = *call.context->board;
    const int steps = (int)steps_.size();
    if (brings_in(call)) image_in(call, Pieces(board, steps, splits_.back().count, thread));
    for (int i = 0; i < steps; i++) {
        run_step(call, (size_t)i, thread, Pieces(board, i, splits_[(size_t)i].count, thread));
        if (call.times && thread == 0) call.times[i] = wall();
    }
    if (thread == 0) answer(call);
}

// How many threads so many images are worth.
int Engine::threads_for(long images) const {
    const double worth = share_ * (double)images;
    return worth >= threads_ ? threads_ : worth >= 1 ? (int)worth : 1;
}

// False where the threads are not to be had.
bool Engine::run_together(const Call &call, int most) {
    ThreadPool *threads = most < 2 ? nullptr : pool();
    if (!threads) return false;
    struct Job {
        const Engine *engine;
        const Call *call;
    } job{this, &call};
    for (size_t i = 0; i < splits_.size(); i++) call.context->board->open((int)i, splits_[i].count, most);
    const auto work = [](void *argument, int thread) {
        const Job &j = *(const Job *)argument;
        j.engine->walk_together(*j.call, thread);
    };
    return threads->run(work, &job, most);
}

std::vector<double> Engine::step_seconds(const void *x, bool bytes) {
    auto context = take_context();
    const Call call{context.get(), bytes, x, nullptr};
    std::vector<double> seconds;
    if (brings_in(call)) image_in(call, Pieces(splits_.back().count));
    for (size_t i = 0; i < steps_.size(); i++) {
        const double start = processor_time();
        run_step(call, i, 0, Pieces(splits_[i].count));
        seconds.push_back(processor_time() - start);
    }
    give_context(std::move(context));
    return seconds;
}

std::vector<double> Engine::step_seconds_together(const void *x, bool bytes) {
    std::vector<double> times(steps_.size());
    std::vector<std::vector<float>> out;
    std::vector<float *> y;
    for (size_t i = 0; i < outputs_.size(); i++) out.emplace_back(output_elements(i)), y.push_back(out.back().data());
    auto context = take_context();
    const double start = wall();
    const bool together = run_together({context.get(), bytes, x, y.data(), 0, times.data()}, threads_);
    give_context(std::move(context));
    if (!together) return step_seconds(x, bytes);
    for (size_t i = times.size(); i-- > 0;) times[i] -= i ? times[i - 1] : start;
    return times;
}

void Engine::run(const void *x, bool as_bytes, long n, float *const *y) {
    const size_t in_bytes = input_elements() * (as_bytes ? 1 : 4);
    struct Batch {
        Engine *engine;
        const char *x;
        float *const *y;
        size_t in_bytes;
        long n;
        bool as_bytes;
        std::atomic<long> next{0};
    };
    const char *bytes = (const char *)x;
    const int one = threads_for(1), all = threads_for(n), most = one == 1 && n < all ? (int)n : all;
    if (ThreadPool *threads = most > 1 && n >= most ? pool() : nullptr) {  // enough images: each thread takes whole ones
        std::vector<std::unique_ptr<Context>> ready;  // made here, where running out of memory can be reported
        for (int i = 0; i < most; i++) ready.push_back(take_context());
        for (auto &context : ready) give_context(std::move(context));
        Batch batch{this, bytes, y, in_bytes, n, as_bytes};
        const auto work = [](void *argument, int) {
            Batch &b = *(Batch *)argument;
            auto context = b.engine->take_context();
            for (long i; (i = b.next.fetch_add(1)) < b.n;)
                b.engine->walk({context.get(), b.as_bytes, b.x + (size_t)i * b.in_bytes, b.y, i});
            b.engine->give_context(std::move(context));
        };
        if (threads->run(work, &batch, most)) return;
    }
    auto context = take_context();
    for (long i = 0; i < n; i++) {
        const Call call{context.get(), as_bytes, bytes + (size_t)i * in_bytes, y, i};
        if (!run_together(call, one)) walk(call);
    }
    give_context(std::move(context));
}

}  // namespace xnorpp
