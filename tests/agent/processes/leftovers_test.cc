// Which processes are leftovers of a launcher that is gone.
#include "agent/processes/leftovers.h"

#include <gtest/gtest.h>

#include <map>
#include <set>
#include <vector>

namespace ddprun::agent {
namespace {

class Leftovers : public testing::Test {
 protected:
  // 1 init, 10 a shell, 20 ddprun itself (`self`); the others are for the test.
  std::map<pid_t, Process> processes{{1, {0}}, {10, {1}}, {20, {10}}};
  const std::set<std::string> gone{"dead"};
  std::vector<pid_t> found() const { return orphans_of(processes, gone, 20); }
};

TEST_F(Leftovers, AreOrphansOfInitAndAllBelowThem) {
  processes[30] = {1, "dead"};
  processes[31] = {30, "dead"};
  processes[32] = {1, "alive"};
  processes[33] = {1};
  EXPECT_EQ(found(), (std::vector<pid_t>{30, 31}));
}

TEST_F(Leftovers, AreNotWhatALivingParentStartedWithAnOldEnvironment) {
  processes[40] = {1};           // a daemon, told by a worker to start something
  processes[41] = {40, "dead"};  // with that worker's environment
  processes[42] = {41, "dead"};
  EXPECT_EQ(found(), std::vector<pid_t>{});
}

TEST_F(Leftovers, AreNeverUsNorWhatSharesOurEnvironment) {
  processes[10] = {1, "dead"};  // a shell that took over a worker's environment
  processes[20] = {10, "dead"};
  processes[50] = {1, "dead"};  // and what it left in the background
  EXPECT_EQ(found(), std::vector<pid_t>{});
}

TEST_F(Leftovers, AListReadWhileProcessesMoveMayHoldACircle) {
  processes[60] = {61, "dead"};
  processes[61] = {60, "dead"};
  EXPECT_EQ(found(), std::vector<pid_t>{});
}

}  // namespace
}  // namespace ddprun::agent
