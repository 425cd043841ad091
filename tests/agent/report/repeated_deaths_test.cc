// Attempts that end in the same way.
#include "agent/report/repeated_deaths.h"

#include <gtest/gtest.h>

#include <vector>

namespace ddprun::agent {
namespace {

using namespace std::chrono_literals;

const Death kMissing{
    .exit_code = 1, .last_line = "ModuleNotFoundError: No module named 'x'", .lived = 2s};

TEST(RepeatedDeaths, AreToldOnce) {
  RepeatedDeaths deaths;
  EXPECT_EQ(deaths.clause(), "");
  deaths.add({.exit_code = 3, .last_line = "other"});
  EXPECT_EQ(deaths.clause(), "");
  deaths.add({.exit_code = 1, .last_line = "ValueError: y"});
  deaths.add({.exit_code = 1, .last_line = "ValueError: y"});
  EXPECT_EQ(
      deaths.clause(),
      "the last 2 attempts failed in the same way, before a step, with exit code 1: ValueError: y");
}

TEST(RepeatedDeaths, OfAllAttemptsSayAll) {
  RepeatedDeaths deaths;
  for (int i = 0; i < 4; ++i) deaths.add({.exit_code = -11});
  EXPECT_EQ(deaths.clause(),
            "all 4 attempts failed in the same way, before a step, with exit code -11");
}

TEST(RepeatedDeaths, ThatComeLateOrAfterAStepAreNone) {
  for (const Death& late : {Death{.exit_code = 1, .last_line = "x", .lived = kLongestStart},
                            Death{.exit_code = 1, .last_line = "x", .stepped = true}}) {
    RepeatedDeaths deaths;
    deaths.add(late);
    deaths.add(late);
    EXPECT_EQ(deaths.clause(), "");
  }
}

TEST(RepeatedDeaths, ArePointlessFromTheThirdOn) {
  RepeatedDeaths deaths;
  for (int tried = 1; tried < kPointlessDeaths; ++tried) {
    EXPECT_FALSE(deaths.is_pointless(kMissing)) << tried;
    deaths.add(kMissing);
  }
  EXPECT_TRUE(deaths.may_be_pointless());
  EXPECT_TRUE(deaths.is_pointless(kMissing));
  Death other = kMissing;
  other.last_line = "ModuleNotFoundError: No module named 'y'";  // one step further
  EXPECT_FALSE(deaths.is_pointless(other));
  Death stepped = kMissing;
  stepped.stepped = true;
  EXPECT_FALSE(deaths.is_pointless(stepped));
}

// A job is tried again if another try may change its end, as torchrun does.
TEST(RepeatedDeaths, ArePointlessOnlyWhereAProgramCannotStart) {
  const auto of = [](int exit_code, const char* line) {
    return cannot_start({.exit_code = exit_code, .last_line = line});
  };
  EXPECT_TRUE(of(1, "SyntaxError: invalid syntax"));
  EXPECT_TRUE(of(1, "IndentationError: unexpected indent"));
  EXPECT_TRUE(of(1, "/usr/bin/python3: No module named trainer"));
  EXPECT_TRUE(of(2, "train.py: error: unrecognized arguments: --x"));
  EXPECT_TRUE(of(2, "Error: No such option: --x"));
  EXPECT_TRUE(
      of(2, "/usr/bin/python3: can't open file '/t.py': [Errno 2] No such file or directory"));
  for (const char* line :
       {"", "RuntimeError: CUDA error: out of memory", "OSError: [Errno 98] Address already in use",
        "ConnectionError: refused", "FileNotFoundError: /data", "ImportError: libcuda.so.1: x"}) {
    EXPECT_FALSE(of(1, line)) << line;
    EXPECT_FALSE(of(2, line)) << line;
  }
  EXPECT_FALSE(of(3, "SyntaxError: invalid syntax"));
  EXPECT_FALSE(of(-9, "ModuleNotFoundError: No module named 'x'"));
}

TEST(LastSaid, IsTheLastLineWithoutItsRank) {
  using Lines = std::vector<std::string>;
  EXPECT_EQ(last_said(Lines{"a", "[rank0]: ValueError: x", " "}), "ValueError: x");
  EXPECT_EQ(last_said(Lines{"a", "b"}), "b");
  EXPECT_EQ(last_said(Lines{}), "");
}

}  // namespace
}  // namespace ddprun::agent
