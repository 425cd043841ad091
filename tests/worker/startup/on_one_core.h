// For tests of ranks that share a core: this thread, and the processes that it forks, on one core.
#pragma once

#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <stdexcept>
#include <string>

namespace ddprun::worker {

class OnOneCore {
 public:
  OnOneCore() {
    if (::sched_getaffinity(0, sizeof before_, &before_) != 0)
      throw std::runtime_error("no affinity");
    int core = 0;
    while (!CPU_ISSET(core, &before_)) ++core;
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(core, &one);
    if (::sched_setaffinity(0, sizeof one, &one) != 0) throw std::runtime_error("not on one core");
  }
  ~OnOneCore() { ::sched_setaffinity(0, sizeof before_, &before_); }
  OnOneCore(const OnOneCore&) = delete;
  OnOneCore& operator=(const OnOneCore&) = delete;

 private:
  cpu_set_t before_{};
};

// Returns the slice of the calling thread; 0: this kernel has one length for all (before Linux
// 6.12).
inline std::chrono::nanoseconds time_slice() {
  // The fourth one is sched_runtime (sched_setattr(2)).
  std::array<std::uint64_t, 6> attributes{};
  if (::syscall(SYS_sched_getattr, 0, attributes.data(), sizeof attributes, 0) != 0) return {};
  return std::chrono::nanoseconds(attributes[3]);
}

// Says why slices cannot change here. Empty if they can.
inline std::string no_time_slices() {
  if (::sched_getscheduler(0) != SCHED_OTHER)
    return "this test was started with a policy of its own";
  if (time_slice().count() == 0) return "this kernel has one length of time slices for all";
  return {};
}

}  // namespace ddprun::worker
