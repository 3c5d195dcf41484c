#include "process.h"

#if !defined(XNORPP_NO_THREADS) && !defined(_WIN32)
#include <pthread.h>
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

}  // namespace xnorpp
