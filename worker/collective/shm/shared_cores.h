// Whether ranks of a host share cores. No state; any thread.
#pragma once

namespace ddprun::worker {

// Returns how many of `ranks` one core has, rounded up. All of them may use the cores of this
// process and no others.
int ranks_a_core(int ranks);

// Whether this process may use other cores than its parent, which has started the other ranks of
// this host, too. Then somebody has bound it, and other ranks may have other cores.
bool has_other_cores_than_parent();

}  // namespace ddprun::worker
