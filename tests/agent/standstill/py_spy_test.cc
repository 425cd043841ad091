#include "agent/standstill/py_spy.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <string>

#include "tests/support/temporary_folder.h"

namespace ddprun::agent {
namespace {

constexpr const char* kDump = R"(Process 4711: /usr/bin/python3 train.py
Thread 4711 (a line of the program's own)
Python v3.11.2 (/usr/bin/python3.11)

Thread 4711 (idle): "MainThread"
    all_reduce (/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py:3075)
    wrapper (/venv/lib/python3.11/site-packages/torch/distributed/c10d_logger.py:83)
    train (/home/me/my (new) code/hang.py:18)
    <module> (/home/me/hang.py:30)
Thread 4712 (idle): "Thread-1"
    wait (/usr/lib/python3.11/threading.py:320)
)";

// A process that calls itself by this path, as the user says. Returns when it does.
pid_t begin_as(const std::string& name, uid_t user) {
  std::array<int, 2> ends{};
  EXPECT_EQ(::pipe2(ends.data(), O_CLOEXEC), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    if (::setresuid(user, user, user) == 0)
      ::execl("/bin/sleep", name.c_str(), "1000", static_cast<char*>(nullptr));
    ::_exit(1);
  }
  ::close(ends[1]);
  char nothing = 0;
  EXPECT_EQ(::read(ends[0], &nothing, 1), 0);  // its copy is closed by exec
  ::close(ends[0]);
  return child;
}

void end(pid_t child) {
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
}

TEST_F(FolderTest, OnlyAWorkerOfTheSameUserNamesItsPySpy) {
  const std::string program = (folder / "py-spy").string();
  ::close(::open(program.c_str(), O_CREAT | O_WRONLY, 0755));
  const pid_t own = begin_as((folder / "python3").string(), ::geteuid());
  EXPECT_EQ(find_py_spy(own), program);
  end(own);
  if (::geteuid() != 0) GTEST_SKIP() << "needs root: a process of another user";
  const pid_t nobodys = begin_as((folder / "python3").string(), 65534);
  EXPECT_EQ(find_py_spy(nobodys), "");
  end(nobodys);
}

TEST(PySpy, TheMainThreadIsRead) {
  const auto read = parse_py_spy(kDump, 4711);
  ASSERT_TRUE(read.has_value());
  ASSERT_EQ(read->stack.size(), 4U);
  EXPECT_EQ(read->inside, "all_reduce");
  EXPECT_FALSE(read->stack[0].is_own);
  EXPECT_EQ(read->stack[2], (WitnessFrame{true, "train", "/home/me/my (new) code/hang.py", 18}));
  EXPECT_EQ(place_in(read->stack), "train (hang.py:18)");
}

TEST(PySpy, ABackwardPassWaitsForOthers) {
  const auto read = parse_py_spy(
      "\nThread 7 (idle)\n    _engine_run_backward (/v/site-packages/torch/autograd/graph.py:8)\n",
      7);
  ASSERT_TRUE(read.has_value());
  EXPECT_EQ(read->inside, "backward");
}

TEST(PySpy, AnythingElseIsNoStack) {
  for (const std::string text : {"", "Error: Permission Denied\n", "\nThread 4711 (idle)\n",
                                 "\nThread 4711 (idle)\n    no place\n"})
    EXPECT_FALSE(parse_py_spy(text, 4711).has_value()) << text;
  EXPECT_FALSE(parse_py_spy(kDump, 4713).has_value());
}

TEST(PySpy, IsOfPythonAlone) {
  EXPECT_EQ(find_py_spy(::getpid()), "");
  EXPECT_EQ(find_py_spy(-1), "");
}

TEST(PySpy, AProgramThatDoesNotStartGivesNothing) {
  EXPECT_FALSE(PySpy("/nowhere", 1, testing::TempDir() + "spy").answer().has_value());
}

}  // namespace
}  // namespace ddprun::agent
