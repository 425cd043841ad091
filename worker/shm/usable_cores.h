// How many cores there are for this process. No state; any thread.
#pragma once

namespace ddprun::worker {

// Cores that this process may run on, hardware threads counted: under taskset and in some containers not all of
// the host's. At least 1. Where the ranks of a host are bound, other ranks have other ones.
int usable_cores();

// Whether somebody has bound this process: it may not use all cores of its parent, which has started the other
// ranks of this host, too.
bool has_other_cores_than_parent();

}  // namespace ddprun::worker
