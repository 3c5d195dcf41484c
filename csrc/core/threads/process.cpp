#include "process.h"

#include <pthread.h>

#include <stdexcept>

namespace xnorpp {
namespace {

void count_fork() { fork_count.fetch_add(1, std::memory_order_relaxed); }

const int counted = pthread_atfork(nullptr, nullptr, count_fork);

}  // namespace

std::atomic<unsigned> fork_count{0};

void require_counted_forks() {
    if (counted) throw std::runtime_error("the native core could not register with the system's fork (pthread_atfork failed)");
}

}  // namespace xnorpp
