// The processes that are orphans of a launcher that is gone.
#include "agent/processes/orphans.h"

#include <gtest/gtest.h>

#include <map>
#include <set>
#include <vector>

namespace ddprun::agent {
namespace {

class Orphans : public testing::Test {
 protected:
  // 1 init, 10 a shell, 20 ddprun itself (`self`); the others are for the test.
  std::map<pid_t, ProcessEntry> processes{{1, {.parent = 0, .session = 1, .is_reaper = true}},
                                          {10, {.parent = 1, .session = 10}},
                                          {20, {.parent = 10, .session = 10}}};
  const std::set<std::string> gone{"dead"};
  std::vector<pid_t> found() const { return orphans_of(processes, gone, 20); }
};

TEST_F(Orphans, AreThoseOfInitAndAllBelowThem) {
  processes[30] = {1, "dead"};
  processes[31] = {30, "dead"};
  processes[32] = {1, "alive"};
  processes[33] = {1};
  EXPECT_EQ(found(), (std::vector<pid_t>{30, 31}));
}

TEST_F(Orphans, AreNotWhatALivingParentStartedWithAnOldEnvironment) {
  processes[40] = {1, {}, 40};       // a daemon, told by a worker to start something
  processes[41] = {40, "dead", 40};  // with that worker's environment
  processes[42] = {41, "dead", 40};
  processes[43] = {40, "dead", 43};  // in a session of its own
  EXPECT_EQ(found(), std::vector<pid_t>{});
}

// 70 asked for orphans: `systemd --user`, a container's first process that is not pid 1.
TEST_F(Orphans, AreTakenInByAnotherReaperThanInit) {
  processes[70] = {1, {}, 70};
  processes[71] = {70, "dead", 25};  // the session of a worker that is gone
  processes[72] = {71, "dead", 25};
  processes[73] = {70, "dead", 73};  // left it by setsid; who took 71 in took this one in
  processes[74] = {70, "alive", 74};
  EXPECT_EQ(found(), (std::vector<pid_t>{71, 72, 73}));
}

TEST_F(Orphans, AreTakenInByAnAncestorOfOurs) {
  processes[10].parent = 80;
  processes[80] = {1, {}, 80};
  processes[81] = {80, "dead", 81};  // left its session by setsid
  processes[82] = {80, "dead", 80};  // started by 80 with an old environment
  EXPECT_EQ(found(), (std::vector<pid_t>{81, 82}));
  processes.erase(81);
  EXPECT_EQ(found(), std::vector<pid_t>{});
}

TEST_F(Orphans, OfAManagerOfServicesNeedNoFurtherSign) {
  processes[90] = {.parent = 1, .session = 90, .is_reaper = true};
  processes[91] = {90, "dead", 91};
  EXPECT_EQ(found(), std::vector<pid_t>{91});
}

TEST_F(Orphans, AreNeverUsNorWhatSharesOurEnvironment) {
  processes[10] = {1, "dead"};  // a shell that took over a worker's environment
  processes[20] = {10, "dead"};
  processes[50] = {1, "dead"};  // and what it left in the background
  EXPECT_EQ(found(), std::vector<pid_t>{});
}

TEST_F(Orphans, AListReadWhileProcessesMoveMayHoldACircle) {
  processes[60] = {61, "dead"};
  processes[61] = {60, "dead"};
  EXPECT_EQ(found(), std::vector<pid_t>{});
}

}  // namespace
}  // namespace ddprun::agent
