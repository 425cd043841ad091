// The CPUs that a process may run on. No state; any thread.
#pragma once

#include <sys/types.h>

#include <vector>

namespace ddprun {

// The kernel's bound on x86-64 (NR_CPUS). A higher number is no CPU.
inline constexpr int kMaxCpus = 8192;

// CPU numbers of the affinity mask of `process`, ascending; 0: of the calling thread. Empty if the
// kernel does not tell.
std::vector<int> allowed_cpus(pid_t process = 0);

}  // namespace ddprun
