// What launchers that are gone left on this host: when guardian and agent were killed in one
// moment, nobody was there to clean up. Found by the job's cookie in environments and names. Shell;
// run by the guardian beside the start, so that a start does not wait for it.
#pragma once

#include <cstddef>

namespace ddprun::agent {

// Ends processes and removes cgroups and shared memory of jobs whose launcher no longer runs. Those
// of other users, other pid namespaces and live launchers are not touched. Returns how many
// processes were ended.
std::size_t end_leftovers();

}  // namespace ddprun::agent
