#include "launcher/options/signal_values.h"

#include <gtest/gtest.h>

#include <csignal>

namespace ddprun::launcher {
namespace {

TEST(ParseSignal, TakesKernelNamesWithAndWithoutSig) {
  EXPECT_EQ(parse_signal("TERM"), SIGTERM);
  EXPECT_EQ(parse_signal("SIGUSR1"), SIGUSR1);
  EXPECT_EQ(parse_signal("SYS"), SIGSYS);
  for (const auto* text : {"", "SIG", "15", "term", "SIGNOPE", "SIGSIGTERM", " TERM"}) {
    EXPECT_EQ(parse_signal(text), std::nullopt) << text;
  }
}

TEST(ParseSignalList, KeepsTheOrderAndEachOnce) {
  const SignalList list = parse_signal_list("SIGUSR2, TERM,SIGTERM");
  EXPECT_EQ(list.signals, (std::vector<int>{SIGUSR2, SIGTERM}));
  EXPECT_TRUE(list.refused.empty());
}

TEST(ParseSignalList, NamesWhatItCannotTake) {
  const SignalList list = parse_signal_list("SIGKILL,SIGCHLD,,SIGINT,STOP,SEGV");
  EXPECT_EQ(list.signals, (std::vector<int>{SIGINT}));
  EXPECT_EQ(list.refused, (std::vector<std::string>{"SIGKILL", "SIGCHLD", "", "STOP", "SEGV"}));
}

TEST(ParseSignalMap, TakesPairs) {
  EXPECT_EQ(*parse_signal_map(" USR1 = TERM , HUP=KILL"),
            (std::map<int, int>{{SIGUSR1, SIGTERM}, {SIGHUP, SIGKILL}}));
  EXPECT_TRUE(parse_signal_map("")->empty());
}

TEST(ParseSignalMap, RefusesOthers) {
  for (const auto* text : {"USR1", "USR1=", "=TERM", "USR1=TERM,", "USR1=15", "USR1=TERM=INT"}) {
    ASSERT_FALSE(parse_signal_map(text)) << text;
    EXPECT_EQ(parse_signal_map(text).error().message(),
              "expected pairs of signals, such as USR1=TERM,USR2=INT");
  }
  EXPECT_FALSE(parse_signal_map("STOP=TERM"));
  EXPECT_FALSE(parse_signal_map("STOP=TERM,USR1=TERM"));
}

}  // namespace
}  // namespace ddprun::launcher
