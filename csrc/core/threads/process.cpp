#include "process.h"

#if !defined(XNORPP_NO_THREADS) && !defined(_WIN32)
#include <pthread.h>
#endif
#if !defined(XNORPP_NO_THREADS)
#include <thread>
#if defined(__linux__)
#include <sched.h>
#endif
#endif

#include <stdexcept>

namespace xnorpp {
namespace {

#if defined(XNORPP_NO_THREADS) || defined(_WIN32)
constexpr int counted = 0;  // no forks, or nothing that a fork could leave locked
#else
void count_fork() { fork_count.fetch_add(1, std::memory_order_relaxed); }

const int counted = pthread_atfork(nullptr, nullptr, count_fork);
#endif

}  // namespace

std::atomic<unsigned> fork_count{0};

void require_counted_forks() {
    if (counted) throw std::runtime_error("the native core could not register with the system's fork (pthread_atfork failed)");
}

int available_cores() {
#if defined(XNORPP_NO_THREADS)
    return 1;
#else
#if defined(__linux__)
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0) return CPU_COUNT(&set);
#endif
    const unsigned count = std::thread::hardware_concurrency();
    return count > 0 ? (int)count : 1;
#endif
}

}  // namespace xnorpp
