#include "worker/shm/usable_cores.h"

#include <sched.h>

namespace ddprun::worker {

int usable_cores() {
  cpu_set_t cores;
  return ::sched_getaffinity(0, sizeof cores, &cores) == 0 ? CPU_COUNT(&cores) : 1;
}

}  // namespace ddprun::worker
