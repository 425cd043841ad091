// Forks the ranks of a host and waits for them. All end well, or the first that does not ends the
// others. It knows no collective. Linux. Thread: the one that calls, in a process that has no
// other.
#pragma once

#include <ddprun/process.h>

#include <functional>

namespace ddprun::worker {

// Calls body(rank) in `ranks` forked processes. Each has a process group of its own. Returns when
// all have ended well. Errors are those of spawn() about ranks.
void run_rank_processes(int ranks, const std::function<void(int rank)>& body);

}  // namespace ddprun::worker
