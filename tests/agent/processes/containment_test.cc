// The processes that an attempt leaves beside its workers, and its end.
#include "agent/processes/containment.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <chrono>
#include <string>

#include "agent/processes/descendants.h"
#include "base/file_handle.h"
#include "tests/agent/processes/shell_workers.h"

namespace ddprun::agent {
namespace {

bool has_segment(const std::string& name) {
  return FileHandle(::shm_open(name.c_str(), O_RDONLY | O_CLOEXEC, 0)).get() >= 0;
}

void make_segment(const std::string& name) {
  const FileHandle made(::shm_open(name.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  ASSERT_GE(made.get(), 0);
}

TEST(SharedMemory, OfThisJobAloneIsRemoved) {
  const std::string cookie = "1-" + std::to_string(::getpid()) + "-2-ours";
  const std::string other = "1-" + std::to_string(::getpid()) + "-2-theirs";
  make_segment("/ddprun-" + cookie + "-0-a");
  make_segment("/ddprun-" + cookie + "-1-b");
  make_segment("/ddprun-" + other);
  remove_shared_memory(cookie);
  EXPECT_FALSE(has_segment("/ddprun-" + cookie + "-0-a"));
  EXPECT_FALSE(has_segment("/ddprun-" + cookie + "-1-b"));
  EXPECT_TRUE(has_segment("/ddprun-" + other));
  remove_shared_memory(other);
  EXPECT_FALSE(has_segment("/ddprun-" + other));
}

TEST(SharedMemory, OfNoJobIsNeverRemoved) { EXPECT_DEATH(remove_shared_memory(""), "empty"); }

TEST(Containment, SharedMemoryIsLookedForOnceAnAttemptHasBegun) {
  const std::string cookie = "1-" + std::to_string(::getpid()) + "-4-early";
  make_segment("/ddprun-" + cookie);
  Containment containment(cookie);
  containment.end_attempt(kSweepLimit, std::chrono::milliseconds(0), {});
  EXPECT_TRUE(has_segment("/ddprun-" + cookie));
  containment.begin_attempt();
  containment.end_attempt(kSweepLimit, std::chrono::milliseconds(0), {});
  EXPECT_FALSE(has_segment("/ddprun-" + cookie));
}

TEST(Containment, EndsWhatWorkersStartedAndTheirSharedMemory) {
  ASSERT_EQ(::prctl(PR_SET_CHILD_SUBREAPER, 1), 0);
  const std::string cookie = "1-" + std::to_string(::getpid()) + "-3-job";
  Containment containment(cookie);
  Children children({});
  children.use_cgroup(containment.begin_attempt());
  Output output;
  ASSERT_TRUE(spawn(children,
                    shell(0, "setsid sh -c \"trap '' TERM; echo ready; sleep 1000\" & exit 0"),
                    output)
                  .has_value());
  EXPECT_EQ(output.line(), "ready");
  make_segment("/ddprun-" + cookie);
  reap_all(children);
  EXPECT_FALSE(own_children().empty());
  containment.end_attempt(kSweepLimit, std::chrono::milliseconds(0), {});
  EXPECT_TRUE(own_children().empty());
  EXPECT_FALSE(has_segment("/ddprun-" + cookie));
  containment.end_attempt(kSweepLimit, std::chrono::milliseconds(0),
                          {});  // nothing is left to be done
  ::prctl(PR_SET_CHILD_SUBREAPER, 0);
}

TEST(Containment, StandbysLiveOnUntilTheEnd) {
  ASSERT_EQ(::prctl(PR_SET_CHILD_SUBREAPER, 1), 0);
  Containment containment("1-" + std::to_string(::getpid()) + "-5-job");
  Children children({});
  children.use_cgroup(containment.begin_attempt());
  ASSERT_TRUE(children.spawn(shell(0, "sleep 1000")).has_value());
  const auto standby = children.spawn_standby(shell(0, "sleep 1000"), containment.standby_cgroup());
  ASSERT_TRUE(standby.has_value());
  containment.end_attempt(kSweepLimit, std::chrono::milliseconds(0), children.standbys());
  EXPECT_EQ(own_children(), std::set<pid_t>{*standby});
  children.use_cgroup(containment.begin_attempt());
  containment.end(kSweepLimit, std::chrono::milliseconds(0), children.standbys());
  EXPECT_TRUE(own_children().empty());
  ::prctl(PR_SET_CHILD_SUBREAPER, 0);
}

// A large one takes a while to end after its SIGKILL. Here it has got none yet.
TEST(Containment, NoWarningSaysThatWorkersLeftAStandby) {
  ASSERT_EQ(::prctl(PR_SET_CHILD_SUBREAPER, 1), 0);
  Containment containment("1-" + std::to_string(::getpid()) + "-6-job");
  Children children({});
  ASSERT_TRUE(children.spawn_standby(shell(0, "sleep 1000"), -1).has_value());
  testing::internal::CaptureStderr();
  containment.end(kSweepLimit, std::chrono::milliseconds(1000), children.standbys());
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
  EXPECT_TRUE(own_children().empty());
  ::prctl(PR_SET_CHILD_SUBREAPER, 0);
}

}  // namespace
}  // namespace ddprun::agent
