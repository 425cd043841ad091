// Everything below a process, and ending it.
#include "agent/processes/descendants.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <string>
#include <thread>
#include <vector>

#include "agent/processes/children.h"
#include "agent/processes/process.h"
#include "tests/agent/processes/shell_workers.h"

namespace ddprun::agent {
namespace {

class DescendantsTest : public testing::Test {
 protected:
  void SetUp() override { ASSERT_EQ(::prctl(PR_SET_CHILD_SUBREAPER, 1), 0); }
  void TearDown() override { ::prctl(PR_SET_CHILD_SUBREAPER, 0); }
};

TEST_F(DescendantsTest, OfAShellThatDiesOfTheRequestToEndHaveTheGraceToo) {
  Children children({});
  Output output;
  const std::string gate = testing::TempDir() + "ddprun_gate_" + std::to_string(::getpid());
  ASSERT_EQ(::mkfifo(gate.c_str(), 0600), 0);
  ASSERT_TRUE(spawn(children,
                    shell(0,
                          "python3 -c '\n"
                          "import os, signal\n"
                          "def save(*_):\n"
                          "    open(\"" +
                              gate +
                              "\").readline()\n"
                              "    os.write(1, b\"saved\\n\")\n"
                              "    os._exit(0)\n"
                              "signal.signal(signal.SIGTERM, save)\n"
                              "os.write(1, b\"ready\\n\")\n"
                              "heard_at, told_at = os.pipe()\n"
                              "os.set_blocking(told_at, False)\n"
                              "signal.set_wakeup_fd(told_at)\n"
                              "while True:\n"
                              "    os.read(heard_at, 1)\n"
                              "'; exit 5"),
                    output)
                  .has_value());
  EXPECT_EQ(output.line(), "ready");
  children.ask_to_end(SIGTERM);
  const FileHandle opened(::open(gate.c_str(), O_WRONLY | O_CLOEXEC));  // waits for its reader
  wait_for_a_death();
  EXPECT_TRUE(children.reap().empty());
  EXPECT_EQ(children.live(), 1U);
  EXPECT_EQ(::write(opened.get(), "go\n", 3), 3);
  EXPECT_EQ(output.line(), "saved");
  EXPECT_EQ(reap_all(children).at(0).exit_code, -SIGTERM);
  ::unlink(gate.c_str());
}

TEST_F(DescendantsTest, OrphansAreReapedAlsoWhileAShellIsWaitedFor) {
  Children children({});
  Output output;
  // The shell dies of the request to end. Its group goes on, and the orphan, in a session of its
  // own, dies at once.
  ASSERT_TRUE(
      spawn(children,
            shell(0,
                  "(setsid sh -c 'echo orphan' &); sh -c \"trap '' TERM; echo ready; sleep 1000\"; "
                  "exit 5"),
            output)
          .has_value());
  EXPECT_EQ(output.line().size() + output.line().size(), std::string("orphanready").size());
  const pid_t leader = children.pids().front();
  children.ask_to_end(SIGTERM);
  // Dead children: the shell, which is still needed, and the orphan.
  const auto dead_children = [] {
    std::size_t dead = 0;
    for (const pid_t pid : own_children()) {
      const auto stat = read_process_stat(pid);
      if (stat && stat->is_dead()) ++dead;
    }
    return dead;
  };
  while (dead_children() < 2) std::this_thread::yield();
  EXPECT_TRUE(children.reap().empty());
  EXPECT_EQ(dead_children(), 1U);
  EXPECT_TRUE(read_process_stat(leader)->is_dead());
  children.signal_groups(SIGKILL);
  reap_all(children);
  end_descendants();
}

TEST_F(DescendantsTest, EndsWhatForkedTwiceCalledSetsidAndIgnoresTerm) {
  Children children({});
  Output output;
  ASSERT_TRUE(
      spawn(
          children,
          shell(
              0,
              "(setsid sh -c \"trap '' TERM HUP; (sleep 300 &) ; echo ready; sleep 300\" &) ; exit "
              "0"),
          output)
          .has_value());
  EXPECT_EQ(output.line(), "ready");
  reap_all(children);
  EXPECT_TRUE(end_descendants().empty());
  EXPECT_EQ(output.text(), "");
  EXPECT_TRUE(descendants(::getpid()).empty());
}

// A child of a live worker has a session of its own. It changes its parent while the sweep reads
// the lists.
TEST_F(DescendantsTest, EndsWhatMovesUpWhileItLooks) {
  for (int turn = 0; turn < 50; ++turn) {
    Children children({});
    Output output;
    ASSERT_TRUE(
        spawn(children, shell(0, "setsid sleep 300 & echo ready; sleep 300"), output).has_value());
    EXPECT_EQ(output.line(), "ready");
    children.signal_groups(SIGKILL);
    ASSERT_TRUE(end_descendants().empty()) << "turn " << turn;
    EXPECT_EQ(output.text(), "");
  }
}

TEST_F(DescendantsTest, EndsStoppedOnes) {
  Children children({});
  Output output;
  ASSERT_TRUE(spawn(children,
                    shell(0, "setsid sh -c 'echo ready; kill -STOP $$; sleep 300' & exit 0"),
                    output)
                  .has_value());
  EXPECT_EQ(output.line(), "ready");
  reap_all(children);
  EXPECT_TRUE(end_descendants().empty());
  EXPECT_EQ(output.text(), "");
}

TEST_F(DescendantsTest, HasNothingToDoWithoutChildren) {
  EXPECT_TRUE(end_descendants(std::chrono::milliseconds(0)).empty());
}

}  // namespace
}  // namespace ddprun::agent
