#include "worker/startup/time_slices.h"

#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>

#include "worker/collective/shm/shared_cores.h"

namespace ddprun::worker {
namespace {

// sched_attr of sched_setattr(2), as it was first published. glibc 2.36 does not know it, and the
// kernel's header clashes with <sched.h>.
struct SchedulingAttributes {
  std::uint32_t size = sizeof(SchedulingAttributes);
  std::uint32_t policy = 0;
  std::uint64_t flags = 0;
  std::int32_t nice = 0;
  std::uint32_t priority = 0;
  std::uint64_t runtime = 0;  // nanoseconds, as the two below
  std::uint64_t deadline = 0;
  std::uint64_t period = 0;
};
static_assert(sizeof(SchedulingAttributes) == 48);

}  // namespace

bool take_long_time_slices(int local_ranks) {
  const int sharing = ranks_a_core(local_ranks);
  if (sharing <= 1 || has_other_cores_than_parent()) return false;
  // A field that is read and not changed, as the nice value, stays.
  SchedulingAttributes chosen;
  if (::syscall(SYS_sched_getattr, 0, &chosen, sizeof chosen, 0) != 0) return false;
  if (chosen.policy != SCHED_OTHER) return false;
  const std::chrono::nanoseconds slice = std::min(kLongTimeSlice, kAllTimeSlices / sharing);
  const auto length = static_cast<std::uint64_t>(slice.count());
  // 0: the kernel is older than Linux 6.12.
  if (chosen.runtime == 0 || length <= chosen.runtime) return false;
  chosen.policy = SCHED_BATCH;
  chosen.runtime = length;
  return ::syscall(SYS_sched_setattr, 0, &chosen, 0) == 0;
}

}  // namespace ddprun::worker
