// A planned network: values at fixed places of an arena, and steps that are run in order.
#pragma once
#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "conv_build.h"
#include "plain/plain.h"
#include "program/operations.h"
#include "threads/pieces.h"
#include "threads/process.h"
#include "threads/thread_pool.h"

namespace xnorpp {

struct ValueSpec {
    bool bits = false;
    int c = 1, h = 1, w = 1;
    int stride = 16;       // floats of a pixel; bytes of a pixel for bits
    size_t offset = 0;     // in the arena
    int pixels() const { return h * w; }
};

enum class StepKind { Conv, MaxPool, AvgPool, BoxFilter, GlobalMean, AbsMean, Pointwise, Flatten, Softmax, Pad, Signs, Plain, Nothing };

// A stage with its constants, before memory is known.
struct StageSpec {
    StageKind kind{};
    Buffer a, b, map, full, flip;
    float lo = 0, hi = 0;
    int value = -1;
    int which = 0;
    Spread spread = Spread::Each;  // of `value`
};

struct Step {
    StepKind kind{};
    int in = -1;
    int c = 0, h = 0, w = 0;  // shape of the register
    std::vector<StageSpec> stages;
    std::unique_ptr<ConvStore> conv, image;
    Buffer limits, turn, toward;  // of Epilogue
    Pool pool{};
    int pad[6] = {};          // front, back, top, bottom, left, right
    float pad_value = 0;
    PlainStep plain;
    std::vector<int> inputs;  // Plain: the values it reads
    std::vector<View> views;  // and their shapes, the result's at the end
    bool feeds_pool = false;  // the next step pools this one's only result: both run row by row, nothing is stored
};

// How a step is cut into pieces: rows, channel blocks of bands of rows (of a convolution with few pixels), channel blocks of
// each thread's rows (where these are not all of one size: seven rows of two threads are four for one half of the channels and
// three for the other, and a thread mostly reads what it wrote itself), or one.
enum class By { Row, Block, Both };
struct Split {
    int count = 1;
    By by = By::Row;
    int most = 1;   // pieces that are taken at once
    int width = 1;  // of a piece: channel blocks, or channels of a mean
};

// What one call in flight needs: an arena, scratch for every thread, the epilogues with their addresses.
struct Context {
    Buffer arena;
    std::vector<Buffer> scratch;
    std::vector<std::vector<Stage>> stages;
    std::vector<Epilogue> epilogues;
    std::unique_ptr<Board> board;
};

// What the calls of one process share: working memory that is free, and threads. A forked child makes its own with its
// first call and leaves its parent's untouched, also when the engine ends, because any lock in it may be held for ever.
struct Resources {
    const unsigned process = forks();
    Mutex mutex;  // of all that follows
    std::vector<std::unique_ptr<Context>> free;
    size_t made = 0;  // contexts, free and in use
    bool alone = false;  // no threads could be started
    std::unique_ptr<ThreadPool> threads;
    std::atomic<ThreadPool *> pool{nullptr};  // `threads` when they are ready; may be read without the lock
};

// A convolution of fewer pixels for each thread is shared by channels.
constexpr int kFewPixels = 24;
// Values of fewer rows for each thread lie apart in memory (Places::Centred).
constexpr int kFewRows = 7;

class Engine {
  public:
    // `share` is how many threads the work of one image is worth; a call takes as many as its images are, at most
    // `threads`. `memory` is how many bytes it may hold: weights, constants and the working memory of one call.
    Engine(const std::string &isa, int threads, double share, size_t memory);
    ~Engine();

    int add_value(const ValueSpec &value);
    void add_step(Step step);
    const Kernels &kernels() const { return kernels_; }
    const ValueSpec &value(int id) const { return values_.at((size_t)id); }
    int threads() const { return threads_; }
    Budget &budget() { return budget_; }
    // `table` [256][c], or [256] where all channels have the same: the float of each uint8 value, for programs that read
    // the image as floats; else empty.
    void finish(int input, std::vector<int> outputs, size_t arena_bytes, std::vector<float> table, Releases *releases = nullptr);
    // Starts the threads; throws where the system does not give them. Calls in a forked child start theirs when they need
    // them, and work alone where there are none to be had.
    void start();
    // n images, uint8 [h][w][c] or float [c][h][w] each -> for each output in y, float [c][h][w] each.
    void run(const void *x, bool bytes, long n, float *const *y);

    // Processor seconds of each step for one image on one thread; a step that runs with the next has the time of both.
    std::vector<double> step_seconds(const void *x, bool bytes);
    // The same by the clock on the wall, on all threads together.
    std::vector<double> step_seconds_together(const void *x, bool bytes);

    size_t input_elements() const { return (size_t)values_[(size_t)input_].c * values_[(size_t)input_].pixels(); }
    size_t outputs() const { return outputs_.size(); }
    size_t output_elements(size_t index) const {
        const ValueSpec &v = values_[(size_t)outputs_[index]];
        return (size_t)v.c * v.pixels();
    }
    size_t memory() const;  // bytes of weights, constants and contexts

    // One image on its way through the network.
    struct Call {
        Context *context;
        bool bytes;        // whether x is the bytes of an image, or floats
        const void *x;
        float *const *y;  // of each output, for the first image of the batch
        long image = 0;   // in the batch
        double *times = nullptr;  // of each step's end, where somebody asks
    };

  private:
    Resources &resources() const;
    ThreadPool *pool() const;
    std::unique_ptr<Context> take_context();
    void give_context(std::unique_ptr<Context> context);
    Epilogue resolve(const Step &step, char *arena, std::vector<Stage> &stages) const;
    Split split_of(size_t index) const;
    void image_in(const Call &call, Pieces pieces) const;
    void walk(const Call &call) const;
    void walk_together(const Call &call, int thread) const;
    void answer(const Call &call) const;
    bool brings_in(const Call &call) const;
    bool run_together(const Call &call, int most);
    int threads_for(long images) const;
    void run_step(const Call &call, size_t index, int thread, Pieces pieces) const;
    void run_conv(const Call &call, size_t index, int thread, Pieces &pieces) const;
    void run_conv_pool(const Call &call, size_t index, int thread, Pieces &pieces) const;
    void run_pooled_sums(const Call &call, size_t index, int thread, Pieces &pieces) const;
    void run_rows(const Call &call, size_t index, int thread, Pieces &pieces) const;
    void run_plain(const Call &call, size_t index, int thread, Pieces &pieces) const;
    void run_single(const Call &call, size_t index, int thread, Pieces &pieces) const;
    size_t scratch_bytes(size_t index) const;
    void pack_weights(Releases *releases);
    bool fuses_pool(size_t index) const;

    const Kernels &kernels_;
    int threads_;
    double share_;
    Budget budget_;
    std::vector<ValueSpec> values_;
    std::vector<Step> steps_;
    std::vector<float> table_;
    std::shared_ptr<Buffer> weights_;  // of all convolutions
    std::vector<bool> fused_pool_;  // step i runs with step i+1
    std::vector<Split> splits_;     // of every step, and of bringing the image in
    int input_ = -1;
    std::vector<int> outputs_;
    size_t arena_bytes_ = 0, scratch_bytes_ = 0;
    mutable std::atomic<Resources *> resources_;  // of this process, or of the one that it was forked from
};

// Fills a binary convolution's `limits` and `turn` where its only result is bits that follow from the counts.
void make_limits(Step &step);

// Whether a stage keeps the order of numbers in every channel, or turns all of a channel's round (a negative factor).
bool never_falls(const StageSpec &stage, int channels);

// The number that such a stage makes of v in channel c, rounded as the epilogue rounds it.
float after(const StageSpec &stage, int c, float v);

// Fills `toward` of a convolution over an image where the max pool behind it may take whole sums in place of floats.
void make_toward(Step &step, const Step &pool);

// Lines of maxima that a stem holds while its pool takes them: twice the rows that it makes at once.
inline int ring_of_sums(const Conv &stem) { return stem.eight ? 8 : 4; }

// Whether the stages are v*map, v*mult + add, act, + value, v*mult + add, act, store, sign, each at most once and in this
// order.
bool is_fusable(const std::vector<StageSpec> &stages);

}  // namespace xnorpp
