// The advice after a failure that is known.
#include "agent/report/advice.h"

#include <gtest/gtest.h>

namespace ddprun::agent {
namespace {

std::vector<std::string> advised(int exit_code, std::vector<std::string> words,
                                 bool hands_local_rank = true) {
  AgentConfig config;
  config.called = "ddprun-launch";
  config.hands_local_rank = hands_local_rank;
  config.torch_advice = [] { return std::string("torch is elsewhere"); };
  ReportedWorker cause;
  cause.worker.exit = {.local_rank = 1, .pid = 7, .exit_code = exit_code};
  cause.stderr_end = std::move(words);
  return advice_for(cause, config);
}

TEST(Advice, NamesUseEnvWhereAParserRefusesLocalRank) {
  for (const char* refusal :
       {"train.py: error: unrecognized arguments: --local-rank=1",
        "Error: No such option: --local-rank",
        "│ No such option: --local-rank                 "
        "│",
        "FATAL Flags parsing error: Unknown command line flag 'local-rank'. Did you mean: rank ?",
        "getopt.GetoptError: option --local-rank not recognized",
        "ERROR: Could not consume arg: --local-rank=1", "Unrecognized options: --local-rank=1",
        "ValueError: Some specified arguments are not used by the HfArgumentParser: "
        "['--local-rank=1']",
        "train: unrecognized option '--local-rank=1'", "./t: illegal option -- --local-rank",
        "FileNotFoundError: [Errno 2] No such file or directory: '--local-rank=1'"}) {
    const auto advice = advised(1, {"usage: x", refusal});
    ASSERT_EQ(advice.size(), 1U) << refusal;
    EXPECT_NE(advice[0].find("--use-env"), std::string::npos);
    EXPECT_NE(advice[0].find("--local-rank=1"), std::string::npos);
    EXPECT_TRUE(advised(1, {refusal}, false).empty());  // we handed it none
  }
}

TEST(Advice, NamesBothFormsForAScriptWithTheOlderOne) {
  const auto advice = advised(2, {"usage: train.py [-h] [--local_rank LOCAL_RANK]",
                                  "train.py: error: unrecognized arguments: --local-rank=1"});
  ASSERT_EQ(advice.size(), 1U);
  EXPECT_NE(advice[0].find("both --local-rank and --local_rank"), std::string::npos);
}

TEST(Advice, IsSilentAboutOtherErrors) {
  EXPECT_TRUE(advised(2, {"usage: train.py [--local-rank LOCAL_RANK] --data DATA",
                          "train.py: error: the following arguments are required: --data"})
                  .empty());
  EXPECT_TRUE(advised(1, {"  parser.add_argument('--local-rank')", "ValueError: x"}).empty());
  EXPECT_TRUE(advised(1, {"ModuleNotFoundError: No module named 'torchvision'"}).empty());
  EXPECT_TRUE(advised(1, {"ModuleNotFoundError: No module named 'torch.nope'"}).empty());
  EXPECT_TRUE(advised(-15, {"ModuleNotFoundError: No module named 'torch'"}).empty());
}

// On a terminal the worker's words do not come through us.
TEST(Advice, GuessesByTheExitCodeWhereNoWordsAreKnown) {
  EXPECT_EQ(advised(2, {}).size(), 1U);
  EXPECT_TRUE(advised(1, {}).empty());
}

TEST(Advice, TellsOfPythonsWhereTorchIsMissing) {
  const std::vector<std::string> said = {"torch is elsewhere"};
  EXPECT_EQ(advised(1, {"Traceback", "ModuleNotFoundError: No module named 'torch'"}), said);
}

}  // namespace
}  // namespace ddprun::agent
