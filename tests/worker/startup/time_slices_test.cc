#include "worker/startup/time_slices.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <stdexcept>
#include <string>
#include <utility>

#include "worker/shm/usable_cores.h"
#include "worker/startup/spawn.h"

namespace ddprun::worker {
namespace {

void expect(bool holds, const char* what) {
  if (!holds) throw std::runtime_error(what);
}

// In a process of its own: this one stays as it is.
void in_a_copy(const std::function<void()>& body) {
  EXPECT_NO_THROW(run_rank_processes(1, [&](int) { body(); }));
}

void stay_on_one_core() {
  cpu_set_t usable;
  cpu_set_t one;
  CPU_ZERO(&one);
  expect(::sched_getaffinity(0, sizeof usable, &usable) == 0, "no affinity");
  int core = 0;
  while (!CPU_ISSET(core, &usable)) ++core;
  CPU_SET(core, &one);
  expect(::sched_setaffinity(0, sizeof one, &one) == 0, "not on one core");
}

// Of the calling thread; 0: this kernel does not say (sched_setattr(2)).
std::chrono::nanoseconds time_slice() {
  std::array<std::uint64_t, 6> attributes{};  // the fourth one is sched_runtime
  expect(::syscall(SYS_sched_getattr, 0, attributes.data(), sizeof attributes, 0) == 0, "no slice");
  return std::chrono::nanoseconds(attributes[3]);
}

bool kernel_has_slices() {
  utsname name{};
  ::uname(&name);
  std::pair<int, int> version;
  std::sscanf(name.release, "%d.%d", &version.first, &version.second);  // NOLINT(cert-err34-c)
  return version >= std::pair(6, 12);
}

TEST(TimeSlices, AreLongWhereRanksShareACore) {
  in_a_copy([] {
    stay_on_one_core();
    expect(::setpriority(PRIO_PROCESS, 0, 5) == 0, "not nice");
    expect(take_long_time_slices(2), "refused");
    expect(::sched_getscheduler(0) == SCHED_BATCH, "another policy");
    expect(::getpriority(PRIO_PROCESS, 0) == 5, "not nice any more");
    expect(!kernel_has_slices() || time_slice() == kLongTimeSlice, "another length");
  });
}

TEST(TimeSlices, AreTheKernelsWhereEachRankHasACore) {
  in_a_copy([] {
    stay_on_one_core();
    expect(!take_long_time_slices(1), "changed");
    expect(::sched_getscheduler(0) == SCHED_OTHER, "another policy");
  });
}

TEST(TimeSlices, LeaveAPolicyThatSomebodyChose) {
  in_a_copy([] {
    stay_on_one_core();
    const sched_param none{};
    expect(::sched_setscheduler(0, SCHED_IDLE, &none) == 0, "not idle");
    expect(!take_long_time_slices(2), "changed");
    expect(::sched_getscheduler(0) == SCHED_IDLE, "another policy");
  });
}

TEST(TimeSlices, OfSpawnedRanks) {
  const int cores = usable_cores();
  const auto all_have = [](int ranks, int policy, const SpawnOptions& options) {
    const auto body = [policy](Process&) {
      expect(::sched_getscheduler(0) == policy, "another policy");
    };
    EXPECT_NO_THROW(spawn(ranks, body, options)) << ranks << " ranks";
  };
  all_have(1, SCHED_OTHER, {});
  if (cores + 1 <= kMaxSpawnedRanks) {
    all_have(cores + 1, SCHED_BATCH, {});
    all_have(cores + 1, SCHED_OTHER, {.long_time_slices = false});
  }
  EXPECT_EQ(::sched_getscheduler(0), SCHED_OTHER);
}

}  // namespace
}  // namespace ddprun::worker
