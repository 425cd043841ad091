#include "worker/startup/time_slices.h"

#include <ddprun/process.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <stdexcept>
#include <string>

#include "tests/examples/temporary_folder.h"
#include "tests/worker/startup/on_one_core.h"
#include "worker/startup/rank_processes.h"

namespace ddprun::worker {
namespace {

using std::chrono::milliseconds;

class TimeSlices : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!no_time_slices().empty()) GTEST_SKIP() << no_time_slices();
  }
  // Ranks that are forked share this core with this process.
  OnOneCore core_;
};

void expect(bool holds, const char* what) {
  if (!holds) throw std::runtime_error(what);
}

// In a process of its own: this one stays as it is.
void in_a_copy(const std::function<void()>& body) {
  EXPECT_NO_THROW(run_rank_processes(1, [&](int) { body(); }));
}

TEST_F(TimeSlices, AreLongWhereRanksShareACore) {
  in_a_copy([] {
    const int nice = std::min(::getpriority(PRIO_PROCESS, 0) + 1, 19);
    expect(::setpriority(PRIO_PROCESS, 0, nice) == 0, "not nice");
    expect(take_long_time_slices(2), "refused");
    expect(::sched_getscheduler(0) == SCHED_BATCH, "another policy");
    expect(time_slice() == kLongTimeSlice, "another length");
    expect(::getpriority(PRIO_PROCESS, 0) == nice, "not as nice as before");
  });
}

TEST_F(TimeSlices, AreShorterWhereManyRanksShareACore) {
  in_a_copy([] {
    expect(take_long_time_slices(8), "refused");
    expect(time_slice() == milliseconds(10), "another length");
  });
  in_a_copy([] {
    expect(!take_long_time_slices(400), "shorter than the kernel's own");
    expect(::sched_getscheduler(0) == SCHED_OTHER, "another policy");
  });
}

TEST_F(TimeSlices, AreTheKernelsWhereEachRankHasACore) {
  in_a_copy([] {
    expect(!take_long_time_slices(1), "changed");
    expect(::sched_getscheduler(0) == SCHED_OTHER, "another policy");
  });
}

TEST(BoundRanks, HaveTheKernelsTimeSlices) {
  cpu_set_t usable;
  ASSERT_EQ(::sched_getaffinity(0, sizeof usable, &usable), 0);
  if (CPU_COUNT(&usable) < 2) GTEST_SKIP() << "one core: nothing to be bound to";
  in_a_copy([] {
    const OnOneCore mine;
    expect(!take_long_time_slices(2), "changed");
  });
}

TEST_F(TimeSlices, LeaveAPolicyThatSomebodyChose) {
  in_a_copy([] {
    const sched_param none{};
    expect(::sched_setscheduler(0, SCHED_IDLE, &none) == 0, "not idle");
    expect(!take_long_time_slices(2), "changed");
    expect(::sched_getscheduler(0) == SCHED_IDLE, "another policy");
  });
}

TEST_F(TimeSlices, OfSpawnedRanks) {
  const auto all_have = [](int ranks, int policy, const SpawnOptions& options) {
    const auto body = [policy](Process&) {
      expect(::sched_getscheduler(0) == policy, "another policy");
    };
    EXPECT_NO_THROW(spawn(ranks, body, options)) << ranks << " ranks " << options.init_method;
  };
  const examples::TemporaryFolder folder;
  const std::string files = "file://" + folder.path().string();
  all_have(1, SCHED_OTHER, {});
  all_have(2, SCHED_BATCH, {});
  all_have(2, SCHED_BATCH, {.init_method = files + "/1"});
  all_have(2, SCHED_OTHER, {.long_time_slices = false});
  all_have(2, SCHED_OTHER, {.long_time_slices = false, .init_method = files + "/2"});
  EXPECT_EQ(::sched_getscheduler(0), SCHED_OTHER);
}

}  // namespace
}  // namespace ddprun::worker
