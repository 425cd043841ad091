// Workers: spawning, signalling, reaping.
#include "agent/processes/children.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tests/agent/processes/shell_workers.h"

namespace ddprun::agent {
namespace {

TEST(Children, ReportsExitCodesAndSignals) {
  Children children({});
  ASSERT_TRUE(children.spawn(shell(0, "exit 7")).has_value());
  ASSERT_TRUE(children.spawn(shell(1, "kill -9 $$")).has_value());
  std::map<int, int> codes;
  for (const WorkerExit& exit : reap_all(children)) codes[exit.local_rank] = exit.exit_code;
  EXPECT_EQ(codes, (std::map<int, int>{{0, 7}, {1, -9}}));
}

TEST(Children, KnowTheExitCodeOfOneThatIsNotReapedYet) {
  Children children({});
  ASSERT_TRUE(children.spawn(shell(0, "sleep 300")).has_value());
  const pid_t failing = *children.spawn(shell(1, "exit 7"));
  const pid_t ending = *children.spawn(shell(2, "exit 0"));
  siginfo_t info{};
  ASSERT_EQ(::waitid(P_PID, static_cast<id_t>(failing), &info, WEXITED | WNOWAIT), 0);
  ASSERT_EQ(::waitid(P_PID, static_cast<id_t>(ending), &info, WEXITED | WNOWAIT), 0);
  const WorkerExit expected{.local_rank = 1, .pid = failing, .exit_code = 7};
  EXPECT_EQ(children.coming_failure(1), expected);
  EXPECT_EQ(children.coming_failure(0), std::nullopt) << "it lives";
  EXPECT_EQ(children.coming_failure(2), std::nullopt) << "it does not fail";
  EXPECT_EQ(children.coming_failure(3), std::nullopt);
  children.signal_groups(SIGKILL);
  reap_all(children);
}

TEST(Children, ReportsAProgramThatCannotBeExecuted) {
  Children children({});
  ASSERT_TRUE(
      children.spawn({.local_rank = 3, .file = "/no/such/program", .argv = {"x"}, .env = {}})
          .has_value());
  const auto exits = reap_all(children);
  ASSERT_EQ(exits.size(), 1U);
  EXPECT_EQ(exits[0].local_rank, 3);
  EXPECT_EQ(exits[0].exec_errno, ENOENT);
}

TEST(Children, AreSessionLeadersWithTheirOwnEnvironmentAndNoForeignDescriptors) {
  Children children({});
  Output output;
  const int leaked = ::open("/dev/null", O_RDONLY);  // on purpose without O_CLOEXEC
  ASSERT_GE(leaked, 3);
  const pid_t pid = *spawn(
      children, shell(0, "echo $X; ls /proc/$$/fd; cut -d' ' -f1,5,6 /proc/$$/stat"), output);
  const std::string text = output.text();
  reap_all(children);
  ::close(leaked);
  const std::string id = std::to_string(pid);
  EXPECT_EQ(text, "y\n0\n1\n2\n" + id + " " + id + " " + id + "\n");
}

TEST(Children, StartWithDefaultSignalsButKeepThoseIgnoredFromTheStart) {
  ::signal(SIGUSR2, SIG_IGN);  // by this process, later: must not reach the worker
  Children children({SIGHUP});
  Output output;
  ASSERT_TRUE(spawn(children, shell(0, "grep -E 'SigIgn|SigBlk' /proc/$$/status | cut -f2"), output)
                  .has_value());
  EXPECT_EQ(output.text(), "0000000000000000\n0000000000000001\n");  // SIGHUP is bit 0
  reap_all(children);
  ::signal(SIGUSR2, SIG_DFL);
}

TEST(Children, AreGivenTheirOwnDescriptorLimit) {
  rlimit ours{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &ours), 0);
  const rlimit theirs{.rlim_cur = 123, .rlim_max = ours.rlim_max};
  ASSERT_NE(ours.rlim_cur, theirs.rlim_cur);
  Children children({});
  children.give_workers(theirs);
  Output output;
  ASSERT_TRUE(spawn(children, shell(0, "ulimit -Sn; ulimit -Hn"), output).has_value());
  const std::string hard =
      theirs.rlim_max == RLIM_INFINITY ? "unlimited" : std::to_string(theirs.rlim_max);
  EXPECT_EQ(output.text(), "123\n" + hard + "\n");
  reap_all(children);
  rlimit still{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &still), 0);
  EXPECT_EQ(still.rlim_cur, ours.rlim_cur);
}

TEST(Children, ASignalReachesTheWholeGroupAndAStoppedWorkerToo) {
  Children children({});
  Output output;
  const pid_t pid =
      *spawn(children, shell(0, "sleep 300 & echo ready; kill -STOP $$; wait"), output);
  EXPECT_EQ(output.line(), "ready");
  siginfo_t info{};
  ASSERT_EQ(::waitid(P_PID, static_cast<id_t>(pid), &info, WSTOPPED), 0);
  children.signal_groups(SIGTERM);
  EXPECT_EQ(reap_all(children).at(0).exit_code, -SIGTERM);
  EXPECT_EQ(output.text(),
            "");  // ends only when the sleeping grandchild, which holds the pipe too, is gone
}

TEST(Children, DeathsAreToldInTheirOrder) {
  for (int turn = 0; turn < 20; ++turn) {
    Children children({});
    const pid_t first = *children.spawn(shell(0, "kill -STOP $$; exit 3"));
    const pid_t second = *children.spawn(shell(1, "kill -STOP $$; exit 4"));
    siginfo_t info{};
    for (const pid_t pid : {first, second})
      ASSERT_EQ(::waitid(P_PID, static_cast<id_t>(pid), &info, WSTOPPED), 0);
    for (const pid_t pid : {second, first}) {
      ::kill(pid, SIGCONT);
      ASSERT_EQ(::waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED | WNOWAIT), 0);
    }
    const std::vector<WorkerExit> exits = children.reap();
    ASSERT_EQ(exits.size(), 2U);
    EXPECT_EQ(exits[0].local_rank, 1);
    EXPECT_EQ(exits[1].local_rank, 0);
  }
}

// Python leads; its child is a data loader of sorts that would die of the signal.
TEST(Children, AWorkerThatHandlesTheRequestToEndGetsItAlone) {
  Children children({});
  Output output;
  SpawnSpec spec{.local_rank = 0,
                 .file = "/usr/bin/python3",
                 .argv = {"python3", "-c", R"(
import os, signal, subprocess, sys
loader = subprocess.Popen(["sleep", "300"])
def save(*_):
    try:
        loader.wait(0.3)
        os.write(1, b"loader died\n")
    except subprocess.TimeoutExpired:
        os.write(1, b"loader lives\n")
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
os.write(1, b"ready\n")
heard_at, told_at = os.pipe()  # pause() would miss a signal that comes just before it
os.set_blocking(told_at, False)
signal.set_wakeup_fd(told_at)
while True:
    os.read(heard_at, 1)
)"},
                 .env = {"PATH=/usr/bin:/bin"}};
  ASSERT_TRUE(spawn(children, std::move(spec), output).has_value());
  EXPECT_EQ(output.line(), "ready");
  children.ask_to_end(SIGTERM);
  EXPECT_EQ(output.line(), "loader lives");
  EXPECT_EQ(reap_all(children).at(0).exit_code, 0);
  EXPECT_EQ(output.text(), "");  // the loader went with its leader
}

TEST(Children, ARequestToEndReachesWhatAPlainWrapperStarted) {
  Children children({});
  Output output;
  ASSERT_TRUE(
      spawn(children,
            shell(0,
                  "sh -c 'trap \"echo saved; exit 0\" TERM; echo ready; sleep 300 & wait'; exit 5"),
            output)
          .has_value());
  EXPECT_EQ(output.line(), "ready");
  children.ask_to_end(SIGTERM);
  EXPECT_EQ(output.line(), "saved");
  reap_all(children);
}

TEST(Children, AShellThatTrapsTheSignalButWaitsForACommandIsAskedAgainWithItsGroup) {
  Children children({});
  Output output;
  ASSERT_TRUE(spawn(children,
                    shell(0, "trap 'exit 6' TERM; sh -c 'echo ready; exec sleep 300'; exit 7"),
                    output)
                  .has_value());
  EXPECT_EQ(output.line(), "ready");
  children.ask_to_end(SIGTERM);
  children.ask_shells_again(SIGTERM);
  EXPECT_EQ(reap_all(children).at(0).exit_code, 6);
}

TEST(Children, AHelperInTheGroupOfAWorkerThatEndedWellLivesOn) {
  Children children({});
  ASSERT_TRUE(children.spawn(shell(0, "sleep 300 & exit 0")).has_value());
  const WorkerExit exit = reap_all(children).at(0);
  EXPECT_EQ(exit.exit_code, 0);
  EXPECT_EQ(::killpg(exit.pid, 0), 0);
  ::killpg(exit.pid, SIGKILL);
}

TEST(Children, TheGroupOfAWorkerThatFailedOrWasAskedDiesWithIt) {
  Children children({});
  Output output;
  ASSERT_TRUE(spawn(children, shell(0, "trap '' TERM; sleep 300 & exit 3"), output).has_value());
  EXPECT_EQ(reap_all(children).at(0).exit_code, 3);
  EXPECT_EQ(output.text(), "");
  Output other;
  ASSERT_TRUE(spawn(children, shell(1, "sleep 300 & trap 'exit 0' TERM; echo ready; wait"), other)
                  .has_value());
  EXPECT_EQ(other.line(), "ready");
  children.ask_to_end(SIGTERM);
  EXPECT_EQ(reap_all(children).at(0).exit_code, 0);
  EXPECT_EQ(other.text(), "");
}

TEST(Children, AStandbyIsNoWorkerUntilItIsAdopted) {
  Children children({});
  Output output;
  SpawnSpec spec = shell(1, "echo ready; exec sleep 300");
  spec.out = output.writer();
  const auto standby = children.spawn_standby(spec, -1);
  ASSERT_TRUE(standby.has_value());
  spec.out.close();
  EXPECT_EQ(output.line(), "ready");
  children.signal_groups(SIGTERM);
  children.ask_to_end(SIGTERM);
  EXPECT_EQ(children.live(), 0U);
  EXPECT_EQ(children.standbys(), std::set<pid_t>{*standby});
  children.adopt(*standby, 1);
  EXPECT_TRUE(children.standbys().empty());
  EXPECT_EQ(children.local_rank(*standby), 1);
  children.ask_to_end(SIGTERM);
  const WorkerExit exit = reap_all(children).at(0);
  EXPECT_EQ(exit.local_rank, 1);
  EXPECT_EQ(exit.exit_code, -SIGTERM);
}

TEST(Children, AStandbyThatEndedIsForgotten) {
  Children children({});
  const auto standby = children.spawn_standby(shell(0, "exec sleep 300"), -1);
  ASSERT_TRUE(standby.has_value());
  children.end_standby(*standby);
  wait_for_a_death();
  EXPECT_TRUE(children.reap().empty());
  EXPECT_TRUE(children.standbys().empty());
  children.end_standby(*standby);  // the pid is somebody else's now
}

TEST(Children, GiveAStandbyItsConnection) {
  Children children({});
  Output output;
  SpawnSpec spec = shell(0, "echo hello >&3");
  spec.control = output.writer();
  ASSERT_TRUE(children.spawn_standby(spec, -1).has_value());
  spec.control.close();
  EXPECT_EQ(output.line(), "hello");
  wait_for_a_death();
  children.reap();
}

TEST(Children, DieWithTheAgent) {
  Output output;
  FileHandle writer = output.writer();
  const pid_t agent = ::fork();
  if (agent == 0) {
    Children children({});
    SpawnSpec spec = shell(0, "echo ready; exec sleep 300");
    spec.out = FileHandle(writer.release());
    if (!children.spawn(spec)) ::_exit(1);
    spec.out.close();
    ::pause();
    ::_exit(0);
  }
  writer.close();
  EXPECT_EQ(output.line(), "ready");
  ::kill(agent, SIGKILL);
  EXPECT_EQ(output.text(), "");  // end of file: the worker is gone
  ::waitpid(agent, nullptr, 0);
}

}  // namespace
}  // namespace ddprun::agent
