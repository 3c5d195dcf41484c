// Threads of one engine. A call opens its job to them and begins by itself at once; a thread that wakes in time joins,
// one that comes when the work is done is not waited for. What they share within a job is in pieces.h. A pool belongs to
// the process that made it: a forked child neither uses nor destroys it (engine.h, Resources).
//
// With XNORPP_NO_THREADS there are no threads and no locks: an engine then belongs to one thread at a time.
#pragma once
#include <atomic>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>
#if !defined(XNORPP_NO_THREADS)
#include <condition_variable>
#include <mutex>
#include <thread>

#include "placement.h"
#endif

namespace xnorpp {

#if defined(XNORPP_NO_THREADS)
struct Mutex {};
struct Lock {
    explicit Lock(Mutex &) {}
    ~Lock() {}  // makes the variable one that compilers see used
};

class Patience {
  public:
    void wait() {}
};

inline int64_t ticks() { return 0; }

class ThreadPool {
  public:
    explicit ThreadPool(int threads) {
        throw std::runtime_error("`threads` (=" + std::to_string(threads) + "): this build has no threads; ask for `threads=1`");
    }
    bool run(void (*)(void *, int), void *, int) { return false; }
};
#else
using Mutex = std::mutex;
using Lock = std::lock_guard<std::mutex>;

// Waiting for another thread: spins for some microseconds (a step takes as long), then gives up its time slices.
class Patience {
  public:
    void wait();

  private:
    int rounds_ = 0;
};

// A clock for short times: nanoseconds from some moment on.
int64_t ticks();

class ThreadPool {
  public:
    // Throws std::runtime_error, with no thread left running, where one cannot be started.
    explicit ThreadPool(int threads);
    ~ThreadPool();
    int threads() const { return (int)workers_.size() + 1; }
    // Runs job(argument, index) on the caller's thread, index 0, and on every other below `most` that comes before it is
    // over; returns when all have left it. False, with nothing done, where the threads are busy with another call.
    bool run(void (*job)(void *, int), void *argument, int most);

  private:
    void work(int index);
    void join();
    std::vector<std::thread> workers_;
    Placement placement_;  // under busy_
    std::mutex busy_, mutex_;
    std::condition_variable wake_;
    // The job's number, whether it may still be entered, and how many workers are inside: see kOpen.
    std::atomic<uint64_t> state_{0};
    std::atomic<bool> stop_{false};
    std::atomic<int> most_{0};
    void (*job_)(void *, int) = nullptr;
    void *argument_ = nullptr;
};
#endif

}  // namespace xnorpp
