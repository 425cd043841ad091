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
// The time that a cgroup was not allowed to run (cpu.stat, of version 2 and of version 1).
std::chrono::microseconds parse_throttled(std::string_view cpu_stat);

struct HostLook {
  Time when{};
  CpuTicks ticks{};
  std::chrono::microseconds throttled{0};
  std::chrono::milliseconds workers{0};  // CPU time of all workers
  int frequency = 0;                     // thousandths of the most
};
rendezvous::HostSample host_between(const HostLook& first, const HostLook& second);

// `root`: "/" but in tests. `workers`: as in HostLook.
HostLook look_at_host(std::chrono::milliseconds workers, Time now,
                      const std::filesystem::path& root = "/");

}  // namespace ddprun::agent
