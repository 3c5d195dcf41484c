// Which process this is. A forked child has none of its parent's threads, and a lock that one of them held at the fork
// stays locked in the child for ever. What owns threads or locks compares forks() with the number it was made under.
#pragma once
#include <atomic>

namespace xnorpp {

extern std::atomic<unsigned> fork_count;

// How many forks lie between the process that loaded this library and the one that asks.
inline unsigned forks() { return fork_count.load(std::memory_order_relaxed); }

// Throws where the system has no memory left to have its forks counted.
void require_counted_forks();

// How many cores this process may run on; 1 in a build without threads.
int available_cores();

}  // namespace xnorpp
