// The load of this node's CPUs that is not the job's own: the hypervisor, a cgroup's quota, other
// programs. And how fast they run. A number that the kernel does not tell is 0. The parsers are
// pure. Any thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <string_view>

#include "agent/core/clock.h"
#include "rendezvous/core/rendezvous.h"

namespace ddprun::agent {

// /proc/stat's first line (proc_stat(5)), in clock ticks of all CPUs.
struct CpuTicks {
  std::int64_t all = 0;
  std::int64_t idle = 0;
  std::int64_t stolen = 0;
};
CpuTicks parse_cpu_ticks(std::string_view stat);
// The periods of a cgroup's CPU quota, and those in which it had to pause. cpu.stat has them, of
// version 2 and of version 1. The time of the pauses is no share: it is a sum over CPUs.
struct QuotaPeriods {
  std::int64_t all = 0;
  std::int64_t throttled = 0;
};
QuotaPeriods parse_quota_periods(std::string_view cpu_stat);

struct HostLook {
  Time when{};
  CpuTicks ticks{};
  QuotaPeriods periods{};
  std::chrono::milliseconds workers{0};  // CPU time of all workers
  int frequency = 0;                     // thousandths of that of all CPUs at once; 0: unknown
};
rendezvous::HostSample host_between(const HostLook& first, const HostLook& second);

// `root`: "/" but in tests. `workers`: as in HostLook.
HostLook look_at_host(std::chrono::milliseconds workers, Time now,
                      const std::filesystem::path& root = "/");

}  // namespace ddprun::agent
