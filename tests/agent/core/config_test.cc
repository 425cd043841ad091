// The meaning of signals.
#include "agent/core/config.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <csignal>

namespace ddprun::agent {
namespace {

TEST(HandledSignals, AlwaysHoldThoseThatEndAProgram) {
  const auto signals = handled_signals({.stop = {SIGALRM, SIGTERM}, .map = {{SIGWINCH, SIGTERM}}});
  for (const int signo : {SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGALRM, SIGWINCH})
    EXPECT_EQ(std::count(signals.begin(), signals.end(), signo), 1) << signo;
}

TEST(SignalMeaning, IsTheUsersWordFirst) {
  const SignalPlan usual;
  EXPECT_TRUE(meaning_of(usual, SIGUSR1).is_message);
  EXPECT_FALSE(meaning_of(usual, SIGTERM).is_message);
  const SignalPlan listed{.stop = {SIGUSR1}};
  EXPECT_FALSE(meaning_of(listed, SIGUSR1).is_message);
  EXPECT_TRUE(meaning_of(listed, SIGUSR2).is_message);
  EXPECT_FALSE(meaning_of(listed, SIGTERM).is_message);  // a launcher never dies of it silently
  const SignalPlan mapped{.map = {{SIGUSR1, SIGTERM}, {SIGTERM, SIGUSR2}}};
  EXPECT_EQ(meaning_of(mapped, SIGUSR1).signo, SIGTERM);
  EXPECT_FALSE(meaning_of(mapped, SIGUSR1).is_message);
  EXPECT_TRUE(meaning_of(mapped, SIGTERM).is_message);
  const SignalPlan told{.map = {{SIGUSR1, SIGWINCH}}};
  EXPECT_TRUE(meaning_of(told, SIGUSR1).is_message);
}

}  // namespace
}  // namespace ddprun::agent
