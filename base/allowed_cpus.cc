#include "base/allowed_cpus.h"

#include <sched.h>

#include <array>
#include <cstddef>

namespace ddprun {

std::vector<int> allowed_cpus(pid_t process) {
  std::vector<int> cpus;
  // As many CPUs as the kernel may have. With a smaller mask the call fails on a large machine
  // (sched_getaffinity(2), EINVAL).
  std::array<cpu_set_t, kMaxCpus / CPU_SETSIZE> mask{};
  if (::sched_getaffinity(process, sizeof(mask), mask.data()) != 0) return cpus;
  for (int cpu = 0; cpu < kMaxCpus; ++cpu) {
    if (CPU_ISSET_S(static_cast<std::size_t>(cpu), sizeof(mask), mask.data())) cpus.push_back(cpu);
  }
  return cpus;
}

}  // namespace ddprun
