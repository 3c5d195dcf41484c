#include "thread_pool.h"

#include <chrono>

#include <unistd.h>

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
constexpr auto kAwake = std::chrono::microseconds(200);    // a worker waits so long for the next call, then sleeps

template <class Done>
void spin_until(Done done) {
    for (int i = 0; !done(); i++) {
        if (i < kSpins) pause();
        else std::this_thread::yield();
    }
}

}  // namespace

void Barrier::wait() {
    const unsigned round = round_.load(std::memory_order_acquire);
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == count_) {
        arrived_.store(0, std::memory_order_relaxed);
        round_.store(round + 1, std::memory_order_release);
    } else {
        spin_until([&] { return round_.load(std::memory_order_acquire) != round; });
    }
}

ThreadPool::ThreadPool(int threads) : owner_((long)getpid()) {
    for (int i = 1; i < threads; i++) workers_.emplace_back([this, i] { work(i); });
}

ThreadPool::~ThreadPool() {
    if ((long)getpid() != owner_) {  // a forked child has no such threads to wait for
        for (auto &worker : workers_) worker.detach();
        return;
    }
    {
        std::lock_guard<std::mutex> lock(mutex_);
        stop_.store(true);
    }
    wake_.notify_all();
    for (auto &worker : workers_) worker.join();
}

bool ThreadPool::run(void (*job)(void *, int), void *argument) {
    if (workers_.empty() || (long)getpid() != owner_) return false;
    std::unique_lock<std::mutex> lock(busy_, std::try_to_lock);
    if (!lock.owns_lock()) return false;
    job_ = job;
    argument_ = argument;
    running_.store((int)workers_.size());
    {
        std::lock_guard<std::mutex> guard(mutex_);
        ticket_.fetch_add(1, std::memory_order_release);
    }
    wake_.notify_all();
    job(argument, 0);
    spin_until([&] { return running_.load(std::memory_order_acquire) == 0; });
    return true;
}

void ThreadPool::work(int index) {
    unsigned seen = 0;
    for (;;) {
        const auto start = std::chrono::steady_clock::now();
        for (int i = 0; ticket_.load(std::memory_order_acquire) == seen && !stop_.load(std::memory_order_relaxed); i++) {
            pause();
            if (i % 64 == 63 && std::chrono::steady_clock::now() - start > kAwake) {
                std::unique_lock<std::mutex> lock(mutex_);
                wake_.wait(lock, [&] { return ticket_.load() != seen || stop_.load(); });
            }
        }
        if (stop_.load()) return;
        seen = ticket_.load(std::memory_order_acquire);
        job_(argument_, index);
        running_.fetch_sub(1, std::memory_order_release);
    }
}

}  // namespace xnorpp
