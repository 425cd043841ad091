#include "worker/collective/shm/shared_cores.h"

#include <unistd.h>

#include <algorithm>

#include "base/allowed_cpus.h"

namespace ddprun::worker {

int ranks_a_core(int ranks) {
  // Under taskset and in some containers not all cores of the host.
  const int cores = std::max(static_cast<int>(allowed_cpus().size()), 1);
  return (ranks + cores - 1) / cores;
}

bool has_other_cores_than_parent() {
  const auto mine = allowed_cpus();
  const auto parents = allowed_cpus(::getppid());
  return !mine.empty() && !parents.empty() && mine != parents;
}

}  // namespace ddprun::worker
