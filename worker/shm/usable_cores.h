// How many cores there are for this process. No state; any thread.
#pragma once

namespace ddprun::worker {

// Cores that this process may run on: under taskset and in some containers not all of the host's. At
// least 1.
int usable_cores();

}  // namespace ddprun::worker
