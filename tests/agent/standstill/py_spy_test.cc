#include "agent/standstill/py_spy.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <string>

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
