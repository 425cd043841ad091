#include "rendezvous/core/progress.h"

#include <gtest/gtest.h>

namespace ddprun::rendezvous {
namespace {

// A worker's failure on n0, of rank 0, after no step.
Failure worker(const std::string& words = "", int rank = 0, const std::string& host = "n0",
               std::int64_t step = 0) {
  return {.hostname = host,
          .rank = rank,
          .local_rank = rank % 2,
          .exit_code = 1,
          .message = "it",
          .words = words,
          .step = step};
}
Failure of_run(std::int64_t step) {
  Failure failure = worker("ValueError: x", 0, "n0", step);
  failure.is_step_of_run = true;
  return failure;
}
Failure killed(Failure failure, int signo) {
  failure.exit_code = -signo;
  return failure;
}

class ProgressTest : public testing::Test {
 protected:
  void fail(const Failure& cause) { progress.attempt_failed(++round, 1, cause); }

  ProgressWatch progress;
  std::int64_t round = 0;
};

TEST_F(ProgressTest, CountsAttemptsWithoutAStep) {
  fail(worker());
  fail(worker());
  EXPECT_FALSE(progress.stuck(3));
  fail(worker());
  const auto why = progress.stuck(3);
  ASSERT_TRUE(why);
  EXPECT_EQ(why->attempts, 3);
  ASSERT_EQ(why->last.size(), 3U);
  EXPECT_EQ(why->last.front().round, 1);
  EXPECT_FALSE(progress.stuck(4));
  EXPECT_FALSE(progress.stuck(0)) << "0 is off";
}

TEST_F(ProgressTest, AStepSinceTheFirstLineMayBeProgress) {
  for (int i = 0; i < 100; ++i) fail(worker("ValueError: x", 0, "n0", 1));
  EXPECT_FALSE(progress.stuck(1)) << "each may have begun at a checkpoint";
  fail(worker());
  fail(worker());
  fail(worker("", 0, "n0", 5));
  EXPECT_FALSE(progress.stuck(1)) << "the row began anew";
  fail(worker());
  EXPECT_EQ(progress.stuck(1)->sentence.substr(0, 24), "the last 1 attempts fail");
}

TEST_F(ProgressTest, AStepOfTheRunMustBeBeyondTheBest) {
  for (int step = 1; step < 100; ++step) {
    fail(of_run(step));
    ASSERT_FALSE(progress.stuck(1)) << "it goes one step further each time";
  }
  fail(of_run(99));
  EXPECT_TRUE(progress.stuck(1));
  fail(of_run(50));
  fail(of_run(99));
  EXPECT_TRUE(progress.stuck(3));
  fail(of_run(100));
  EXPECT_FALSE(progress.stuck(1));
}

TEST_F(ProgressTest, AFailureWithoutAStepBeginsTheRowAnew) {
  fail(worker());
  fail(worker());
  fail({.hostname = "n0", .message = "the node is lost"});
  fail(worker());
  EXPECT_FALSE(progress.stuck(2));
}

TEST_F(ProgressTest, ShowsTheLastAttempts) {
  for (int i = 0; i < 20; ++i) fail(worker());
  const auto why = progress.stuck(20);
  ASSERT_TRUE(why);
  EXPECT_EQ(why->attempts, 20);
  ASSERT_EQ(why->last.size(), kMostShownAttempts);
  EXPECT_EQ(why->last.back().round, 20);
  EXPECT_EQ(why->sentence.substr(0, 23), "the last 8 attempts fai");
}

TEST(Exception, IsTheNameThatPythonPrints) {
  EXPECT_EQ(exception_of("ValueError: bad"), "ValueError");
  EXPECT_EQ(exception_of("AssertionError"), "AssertionError");
  EXPECT_EQ(exception_of("torch.OutOfMemoryError: CUDA out of memory"), "OutOfMemoryError");
  EXPECT_EQ(exception_of("my_package.Stop: now"), "Stop");
  for (const char* none : {"", "error: no such file", "Segmentation fault", "a.b", ".",
                           "make: *** no", "Fatal Python error: Aborted", "[rank0]: x"})
    EXPECT_EQ(exception_of(none), "") << none;
}

// Twelve kinds of causes.
TEST(CommonSentence, SaysWhoIsToBlame) {
  const std::string cuda = "torch.AcceleratorError: CUDA error: an illegal memory access";
  const struct {
    const char* kind;
    std::vector<Failure> causes;
    int nodes;
    const char* sentence;
  } cases[] = {
      {"the same exception on all ranks",
       {worker("ValueError: a", 0, "n0"), worker("ValueError: a", 3, "n1"),
        worker("ValueError: a", 1, "n0")},
       2,
       "before a step, with the same ValueError, ranks on several nodes: the data or the program, "
       "not a machine"},
      {"an assertion at one step",
       {worker("AssertionError", 0, "n0", 1204), worker("AssertionError", 2, "n1", 1204)},
       2,
       "after step 1204, with the same AssertionError, ranks on several nodes: the data or the "
       "program, not a machine"},
      {"a bad file on one rank",
       {worker("OSError: x", 3, "n1", 7), worker("OSError: x", 3, "n1", 7)},
       2,
       "after step 7, with the same OSError, rank 3 on n1: the data of rank 3, or n1"},
      {"out of memory on one node",
       {killed(worker("", 2, "n1"), 9), killed(worker("", 3, "n1"), 9)},
       2,
       "before a step, by SIGKILL, ranks on n1: n1 is all that they share: look at it first"},
      {"one bad node",
       {killed(worker("", 2, "n1", 5), 11), worker("OSError: x", 3, "n1", 9)},
       2,
       "after steps 5 to 9, each in its own way, ranks on n1: n1 is all that they share: look at "
       "it first"},
      {"a missing package on one node",
       {worker("ModuleNotFoundError: x", 2, "n1"), worker("ModuleNotFoundError: x", 3, "n1")},
       2,
       "before a step, with the same ModuleNotFoundError, ranks on n1: n1 lacks what the others "
       "have"},
      {"a missing package on the only node",
       {worker("ModuleNotFoundError: x", 0), worker("ModuleNotFoundError: x", 1)},
       1,
       "before a step, with the same ModuleNotFoundError, several ranks: the data or the program"},
      {"a port that is taken",
       {worker("DistNetworkError: x", 0, "n0"), worker("DistNetworkError: x", 0, "n0")},
       2,
       "before a step, with the same DistNetworkError, rank 0 on n0: the data of rank 0, or n0"},
      {"one device",
       {worker(cuda, 3, "n1", 4), worker(cuda, 3, "n1", 6)},
       2,
       "after steps 4 to 6, with the same AcceleratorError, rank 3 on n1: the device of local rank "
       "1 on n1, or the program"},
      {"data that is exhausted",
       {worker("StopIteration", 0, "n0", 10), worker("StopIteration", 0, "n0", 10)},
       1,
       "after step 10, with the same StopIteration, rank 0: the data or the program"},
      {"an exit code at one step",
       {worker("", 0, "n0", 10), worker("", 0, "n0", 10)},
       1,
       "after step 10, with exit code 1, rank 0: the data or the program"},
      {"random",
       {worker("ValueError: a", 0, "n0", 2), killed(worker("", 3, "n1", 9), 11)},
       2,
       "after steps 2 to 9, each in its own way, ranks on several nodes: they share nothing: look "
       "at each of them"},
  };
  for (const auto& [kind, causes, nodes, sentence] : cases) {
    std::vector<FailedAttempt> attempts;
    for (const Failure& cause : causes) attempts.push_back({1, cause});
    EXPECT_EQ(common_sentence(attempts, true, nodes),
              "all " + std::to_string(causes.size()) + " attempts failed " + sentence)
        << kind;
  }
}

}  // namespace
}  // namespace ddprun::rendezvous
