#include "base/signal_name.h"

#include <gtest/gtest.h>

#include <csignal>

namespace ddprun {
namespace {

TEST(SignalName, KnowsNamesAndNumbers) {
  EXPECT_EQ(signal_name(SIGSEGV), "SIGSEGV");
  EXPECT_EQ(signal_name(SIGRTMIN + 1), "signal 35");
}

}  // namespace
}  // namespace ddprun
