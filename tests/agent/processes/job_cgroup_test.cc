// The cgroup of an attempt, where this host lets us make one.
#include "agent/processes/job_cgroup.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>

#include "tests/agent/processes/shell_workers.h"

namespace ddprun::agent {
namespace {

class JobCgroupTest : public testing::Test {
 protected:
  void SetUp() override {
    cgroup = JobCgroup::make(cookie, 1);
    if (cgroup.folder() < 0) GTEST_SKIP() << "no cgroup v2 with cgroup.kill that may be written";
  }
  void TearDown() override { end_job_cgroup(cookie); }
  bool is_there() const {
    struct stat facts {};
    return ::stat(path.c_str(), &facts) == 0;
  }

  bool is_populated() const {
    std::ifstream file(path + "/cgroup.events");
    const std::string events(std::istreambuf_iterator<char>(file), {});
    return events.find("populated 1") != std::string::npos;
  }

  const std::string cookie = "1-" + std::to_string(::getpid()) + "-4-test";
  const std::string path = own_cgroup_folder() + "/" + kCgroupPrefix + cookie + "-1";
  JobCgroup cgroup;
};

TEST_F(JobCgroupTest, WorkersAreBornIntoItAndEndByOneWrite) {
  EXPECT_TRUE(is_there());
  Children children({});
  children.use_cgroup(cgroup.folder());
  Output output;
  const auto pid =
      spawn(children, shell(0, "trap '' TERM; (sleep 1000 & sleep 1000 &); echo ready; sleep 1000"),
            output);
  ASSERT_TRUE(pid.has_value());
  EXPECT_EQ(output.line(), "ready");
  std::ifstream list("/proc/" + std::to_string(*pid) + "/cgroup");
  const std::string groups(std::istreambuf_iterator<char>(list), {});
  EXPECT_NE(groups.find(kCgroupPrefix + cookie), std::string::npos) << groups;
  cgroup.kill();
  EXPECT_EQ(reap_all(children).at(0).exit_code, -SIGKILL);
  EXPECT_EQ(output.text(), "") << "every holder of the pipe is gone";
  // On a busy machine it takes longer than kLeaveLimit.
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (is_populated() && std::chrono::steady_clock::now() < deadline) std::this_thread::yield();
  cgroup.remove();
  EXPECT_FALSE(is_there());
  EXPECT_EQ(cgroup.folder(), -1);
}

TEST_F(JobCgroupTest, IsEndedByNameFromOutside) {
  end_job_cgroup(cookie);
  EXPECT_FALSE(is_there());
  end_job_cgroup(cookie);  // is gone already
}

TEST_F(JobCgroupTest, AllOfAJobAreEndedTogether) {
  const JobCgroup second = JobCgroup::make(cookie, 2);
  EXPECT_GE(second.folder(), 0);
  end_job_cgroup(cookie);
  EXPECT_FALSE(is_there());
  struct stat facts {};
  EXPECT_NE(::stat((own_cgroup_folder() + "/" + kCgroupPrefix + cookie + "-2").c_str(), &facts), 0);
}

TEST(JobCgroup, NoneDoesNothing) {
  JobCgroup none;
  none.kill();
  none.remove();
  EXPECT_EQ(none.folder(), -1);
}

}  // namespace
}  // namespace ddprun::agent
