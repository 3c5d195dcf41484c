// Where the workers of a pool may run: not on the core of the thread that calls. A system that wakes a worker likes to put it
// on the core of the one who woke it, because that core has the data; the two then take turns on it for many milliseconds while
// another core is idle, and two threads are slower than one.
//
// What the user allows holds: a worker may run where it was allowed to run before, less that one core. Nothing is done where
// this leaves nothing, where the system refuses, and on systems other than Linux.
#pragma once
#if !defined(XNORPP_NO_THREADS)  // a library without threads has no <thread>
#include <thread>
#include <vector>

#if defined(__linux__)
#include <sched.h>
#endif

namespace xnorpp {

#if defined(__linux__)
class Placement {
  public:
    // Called by the thread that is about to open a job. Costs nothing while the caller stays where it was.
    void make_way(std::vector<std::thread> &workers) {
        const int core = sched_getcpu();
        if (core != core_) move(workers, core);
    }

  private:
    void move(std::vector<std::thread> &workers, int core);
    struct Mask {
        cpu_set_t allowed, given;  // by the user; by us, without one core
        bool known = false;
    };
    int core_ = -1;
    bool refused_ = false;
    std::vector<Mask> masks_;
};
#else
class Placement {
  public:
    void make_way(std::vector<std::thread> &) {}
};
#endif

}  // namespace xnorpp
#endif
