// Ranks that share a core: each computes for a long time before the kernel gives the core to another
// one. Changes this process alone, and keeps no state.
#pragma once

#include <chrono>

namespace ddprun::worker {

// Long beside what it takes to fill a core's caches (some 0.3 ms), and short beside the time in which a rank must see that
// another one has died. Linux gives 0.1 to 100 ms (kernel/sched/syscalls.c of 6.12, __setparam_fair).
inline constexpr std::chrono::milliseconds kLongTimeSlice{20};

// Where `local_ranks` are more than the cores that this process may use: the calling thread, and the threads and
// processes that it starts later, are scheduled as SCHED_BATCH with time slices of kLongTimeSlice. The kernel's own are
// of about 3 ms, and after each one the caches of a core are another rank's. Processes with shorter slices
// still come first when they wake up. Nothing changes where somebody has chosen another policy than
// SCHED_OTHER, or where the kernel refuses. Before Linux 6.12 the length stays the kernel's
// (sched_setattr(2)). Returns whether it was changed.
bool take_long_time_slices(int local_ranks);

}  // namespace ddprun::worker
