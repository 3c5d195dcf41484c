// How far two cores are apart, for records of measurements with two threads.
#pragma once

namespace xnorpp {

// Nanoseconds that a cache line takes from one core to the other, by the fastest of several rounds. Below 0 where it cannot be
// measured: for one core given twice, for cores that this process may not use, without threads, and on systems other than Linux.
double core_distance(int first, int second);

}  // namespace xnorpp
