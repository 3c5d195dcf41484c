#include "thread_pool.h"

#if !defined(XNORPP_NO_THREADS)
#include <chrono>
#include <system_error>

namespace xnorpp {
namespace {

inline void pause() {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

constexpr int kSpins = 400;                                // some microseconds
// A worker waits so long for the next call, then sleeps: to be woken takes tens of microseconds. Where the last call came
// soon, it waits longer, for one call follows the other.
using Clock = std::chrono::steady_clock;
constexpr auto kAwake = std::chrono::microseconds(500), kSoon = std::chrono::microseconds(2000);
constexpr auto kPushed = std::chrono::microseconds(50);    // a look at the clock that took so long: others need the core
constexpr uint64_t kInside = 0xffff, kOpen = 0x10000, kJob = 0x20000;  // workers inside; may be entered; one job more

}  // namespace

void Patience::wait() {
    if (rounds_ < kSpins) rounds_++, pause();
    else std::this_thread::yield();
}

int64_t ticks() { return std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now().time_since_epoch()).count(); }

ThreadPool::ThreadPool(int threads) {
    try {
        for (int i = 1; i < threads; i++) workers_.emplace_back([this, i] { work(i); });
    } catch (const std::system_error &error) {
        const std::string possible = std::to_string(this->threads());
        join();  // they wait on members of this object
        throw std::runtime_error("`threads` (=" + std::to_string(threads) + "): only " + possible +
                                 " can run at once here (" + error.code().message() + "); ask for at most `threads=" + possible +
                                 "`");
    } catch (...) {
        join();
        throw;
    }
}

ThreadPool::~ThreadPool() { join(); }

void ThreadPool::join() {
    {
        std::lock_guard<std::mutex> lock(mutex_);
        stop_.store(true);
    }
    wake_.notify_all();
    for (auto &worker : workers_) worker.join();
}

bool ThreadPool::run(void (*job)(void *, int), void *argument, int most) {
    if (workers_.empty()) return false;
    std::unique_lock<std::mutex> lock(busy_, std::try_to_lock);
    if (!lock.owns_lock()) return false;
    placement_.make_way(workers_);
    job_ = job;
    argument_ = argument;
    most_.store(most, std::memory_order_relaxed);  // who reads it too late finds the job closed, or looks again
    {
        std::lock_guard<std::mutex> guard(mutex_);
        state_.fetch_add(kJob | kOpen, std::memory_order_release);  // closed and empty until here
    }
    wake_.notify_all();
    job(argument, 0);
    state_.fetch_and(~kOpen, std::memory_order_acq_rel);
    for (Patience patience; state_.load(std::memory_order_acquire) & kInside;) patience.wait();
    return true;
}

void ThreadPool::work(int index) {
    uint64_t seen = 0;  // the number of the last job that was looked at
    const auto fresh = [&](uint64_t state) { return state / kJob != seen; };
    bool often = false;  // the last call came soon after the one before
    for (;;) {
        const auto start = Clock::now();
        auto last = start;
        for (int i = 0; !fresh(state_.load(std::memory_order_relaxed)) && !stop_.load(std::memory_order_relaxed); i++) {
            pause();
            if (i % 64 != 63) continue;
            const auto now = Clock::now();
            const bool pushed = now - last > kPushed;
            last = now;
            if (now - start <= kAwake || (often && !pushed && now - start <= kSoon)) continue;
            std::unique_lock<std::mutex> lock(mutex_);
            wake_.wait(lock, [&] { return fresh(state_.load()) || stop_.load(); });
        }
        often = Clock::now() - start <= kSoon;
        if (stop_.load()) return;
        uint64_t state = state_.load(std::memory_order_acquire);
        bool entered = false;
        while (state & kOpen && index < most_.load(std::memory_order_relaxed) && !entered)
            entered = state_.compare_exchange_weak(state, state + 1, std::memory_order_acq_rel, std::memory_order_acquire);
        seen = state / kJob;
        if (!entered) continue;
        job_(argument_, index);
        state_.fetch_sub(1, std::memory_order_release);
    }
}

}  // namespace xnorpp
#endif
