// Ranks that share a core: each computes for a long time before the kernel gives the core to
// another one. No state.
#pragma once

#include <chrono>

namespace ddprun::worker {

// To fill a core's caches takes some 0.3 ms. A slice is much longer.
inline constexpr std::chrono::milliseconds kLongTimeSlice{20};
// A rank waits for its core while each other rank of it has one slice. That takes no longer than
// this; ddprun/process.h tells users so.
inline constexpr std::chrono::milliseconds kAllTimeSlices{80};

// Gives the ranks longer slices if `local_ranks` of this host are more than the cores that they may
// use. The calling thread, and the threads and processes that it starts later, are scheduled as
// SCHED_BATCH, with slices of kLongTimeSlice. The slices are shorter if many ranks share a core
// (kAllTimeSlices). The kernel's own slices are of 1 to 4 ms. After each one a core's caches hold
// another rank's data. Processes with shorter slices still come first when they wake up. A busy one
// on the same core makes all slices short. Returns whether something was changed.
//
// Nothing is changed:
// - where the ranks are bound to cores,
// - where the policy is not SCHED_OTHER: somebody has chosen it,
// - where the kernel refuses,
// - before Linux 6.12. There all processes have slices of one length (kernel/sched/syscalls.c,
//   __setscheduler_params).
bool take_long_time_slices(int local_ranks);

}  // namespace ddprun::worker
