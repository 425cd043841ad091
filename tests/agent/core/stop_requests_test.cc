// The signals that count as requests of their own.
#include "agent/core/stop_requests.h"

#include <gtest/gtest.h>

#include <csignal>

namespace ddprun::agent {
namespace {

TEST(StopRequests, EachSignalThatTheGuardianPassesOnIsOne) {
  StopRequests requests;
  EXPECT_TRUE(requests.passed_on(SIGTERM));
  EXPECT_TRUE(requests.passed_on(SIGTERM));
  EXPECT_TRUE(requests.passed_on(SIGTERM));
}

TEST(StopRequests, APairOfOneSignalIsOneInEitherOrder) {
  StopRequests guardian_first;
  EXPECT_TRUE(guardian_first.passed_on(SIGTERM));
  EXPECT_FALSE(guardian_first.direct(SIGTERM));
  EXPECT_TRUE(guardian_first.passed_on(SIGTERM));
  StopRequests direct_first;
  EXPECT_TRUE(direct_first.direct(SIGTERM));
  EXPECT_FALSE(direct_first.passed_on(SIGTERM));
  EXPECT_TRUE(direct_first.passed_on(SIGTERM));
}

TEST(StopRequests, SignalsToTheAgentAloneAreAtMostTheFirst) {
  StopRequests requests;
  EXPECT_TRUE(requests.direct(SIGTERM));
  EXPECT_FALSE(requests.direct(SIGTERM));
  EXPECT_FALSE(requests.direct(SIGTERM));
}

TEST(StopRequests, OnlyCopiesOfOneSignalAreAPair) {
  StopRequests requests;
  EXPECT_TRUE(requests.direct(SIGTERM));
  EXPECT_TRUE(requests.passed_on(SIGINT));
}

}  // namespace
}  // namespace ddprun::agent
