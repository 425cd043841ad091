// Ranks that share a core: each computes for a long time before the kernel gives the core to another one. No state.
#pragma once

#include <chrono>

namespace ddprun::worker {

// Long beside what it takes to fill a core's caches, some 0.3 ms.
inline constexpr std::chrono::milliseconds kLongTimeSlice{20};
// So long the slices of all ranks of a core take together at most: a rank that wakes up waits no longer for its core.
inline constexpr std::chrono::milliseconds kAllTimeSlices{80};

// Where `local_ranks` of this host are more than the cores that they may use: the calling thread, and the threads and
// processes that it starts later, are scheduled as SCHED_BATCH, with slices of kLongTimeSlice, or shorter ones as
// kAllTimeSlices says. The kernel's own are of 1 to 4 ms, and after each one a core's caches are another rank's. Processes
// with shorter slices still come first when they wake up, and a busy one on the same core makes all slices short. Nothing
// changes where the ranks are bound to cores of their own, where somebody has chosen another policy than SCHED_OTHER, where
// the kernel refuses, and before Linux 6.12, which has one length for all (kernel/sched/syscalls.c,
// __setscheduler_params). Returns whether it was changed.
bool take_long_time_slices(int local_ranks);

}  // namespace ddprun::worker
