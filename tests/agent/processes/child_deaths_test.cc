// The order of deaths by their signals, which stands in for pidfds.
#include "agent/processes/child_deaths.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <vector>

namespace ddprun::agent {
namespace {

using Clock = std::chrono::steady_clock;

// SIGCHLD belongs to the whole process, so each test gives it back.
class ChildDeaths : public ::testing::Test {
 protected:
  void SetUp() override { ::sigaction(SIGCHLD, nullptr, &before_); }
  void TearDown() override {
    ::sigaction(SIGCHLD, &before_, nullptr);
    take_child_deaths();
  }

  // A child in a session of its own, as workers are.
  static pid_t start() {
    const pid_t child = ::fork();
    if (child != 0) return child;
    ::setsid();
    while (true) ::pause();
  }

  // Returns when it is dead, and not collected.
  static void kill_and_wait(pid_t child) {
    ::kill(child, SIGKILL);
    siginfo_t info{};
    ASSERT_EQ(::waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOWAIT), 0);
  }

 private:
  struct sigaction before_ {};
};

TEST_F(ChildDeaths, AreToldOnceAndInTheirOrder) {
  record_child_deaths();
  take_child_deaths();
  const pid_t first = start();
  const pid_t second = start();
  kill_and_wait(second);
  kill_and_wait(first);
  EXPECT_EQ(take_child_deaths(), (std::vector<pid_t>{second, first}));
  EXPECT_TRUE(take_child_deaths().empty());
  ::waitpid(first, nullptr, 0);
  ::waitpid(second, nullptr, 0);
}

TEST_F(ChildDeaths, AHandlerThatWasThereIsCalledAsWellAndOneThatCameLaterStays) {
  static volatile std::sig_atomic_t calls = 0;
  struct sigaction theirs {};
  theirs.sa_handler = [](int) { calls = calls + 1; };
  for (int turn = 1; turn <= 2; ++turn) {
    ::sigaction(SIGCHLD, &theirs, nullptr);
    record_child_deaths();
    record_child_deaths();  // must not come to call itself
    const pid_t child = start();
    kill_and_wait(child);
    EXPECT_EQ(calls, turn);
    EXPECT_EQ(take_child_deaths(), std::vector<pid_t>{child});
    ::waitpid(child, nullptr, 0);
  }
}

TEST_F(ChildDeaths, AWaitEndsByADeathOfBeforeAndByItsTime) {
  record_child_deaths();
  sigset_t child_signal;
  sigset_t mask;
  ::sigemptyset(&child_signal);
  ::sigaddset(&child_signal, SIGCHLD);
  ::pthread_sigmask(SIG_BLOCK, &child_signal, &mask);
  const pid_t child = start();
  kill_and_wait(child);
  const auto begin = Clock::now();
  wait_for_child_death(begin + std::chrono::seconds(60));
  EXPECT_LT(Clock::now(), begin + std::chrono::seconds(30));
  const auto until = Clock::now() + std::chrono::milliseconds(30);
  wait_for_child_death(until);
  EXPECT_GE(Clock::now(), until);
  EXPECT_EQ(take_child_deaths(), std::vector<pid_t>{child});
  ::pthread_sigmask(SIG_SETMASK, &mask, nullptr);
  ::waitpid(child, nullptr, 0);
}

TEST_F(ChildDeaths, WorkersThatWereToldComeFirst) {
  std::vector<pid_t> dead = {11, 12, 13, 14};
  sort_by_deaths(dead, {13, 999'999'999, 11, 13});
  EXPECT_EQ(dead, (std::vector<pid_t>{13, 11, 12, 14}));
  sort_by_deaths(dead, {});
  EXPECT_EQ(dead, (std::vector<pid_t>{13, 11, 12, 14}));
}

TEST_F(ChildDeaths, AnOrphanSpeaksForTheWorkerOfItsSession) {
  const pid_t worker = start();
  const pid_t orphan = ::fork();
  if (orphan == 0)
    while (true) ::pause();
  std::vector<pid_t> dead = {worker, ::getsid(0)};
  sort_by_deaths(dead, {orphan});
  EXPECT_EQ(dead, (std::vector<pid_t>{::getsid(0), worker}));
  for (const pid_t pid : {worker, orphan}) {
    ::kill(pid, SIGKILL);
    ::waitpid(pid, nullptr, 0);
  }
}

}  // namespace
}  // namespace ddprun::agent
