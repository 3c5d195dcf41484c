// Threads of one engine. A call wakes them once and they walk the whole network together; between two
// steps they meet at a barrier, which spins (a step takes microseconds) and only then gives up its time slice.
#pragma once
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

namespace xnorpp {

class Barrier {
  public:
    explicit Barrier(int count) : count_(count) {}
    void wait();

  private:
    const int count_;
    std::atomic<int> arrived_{0};
    std::atomic<unsigned> round_{0};
};

class ThreadPool {
  public:
    explicit ThreadPool(int threads);
    ~ThreadPool();
    int threads() const { return (int)workers_.size() + 1; }
    // Runs job(argument, index) on every thread, the caller's being index 0. False, with nothing done, where the
    // threads are busy with another call or belong to a parent process.
    bool run(void (*job)(void *, int), void *argument);

  private:
    void work(int index);
    std::vector<std::thread> workers_;
    std::mutex busy_, mutex_;
    std::condition_variable wake_;
    std::atomic<unsigned> ticket_{0};
    std::atomic<int> running_{0};
    std::atomic<bool> stop_{false};
    void (*job_)(void *, int) = nullptr;
    void *argument_ = nullptr;
    long owner_;
};

}  // namespace xnorpp
