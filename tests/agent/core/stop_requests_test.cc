// Which signals count as requests of their own.
#include "agent/core/stop_requests.h"

#include <gtest/gtest.h>

namespace ddprun::agent {
namespace {

TEST(StopRequests, EachSignalThatTheGuardianPassesOnIsOne) {
  StopRequests requests;
  EXPECT_TRUE(requests.passed_on());
  EXPECT_TRUE(requests.passed_on());
  EXPECT_TRUE(requests.passed_on());
}

TEST(StopRequests, APairOfOneSignalIsOneInEitherOrder) {
  StopRequests guardian_first;
  EXPECT_TRUE(guardian_first.passed_on());
  EXPECT_FALSE(guardian_first.direct());
  EXPECT_TRUE(guardian_first.passed_on());
  StopRequests direct_first;
  EXPECT_TRUE(direct_first.direct());
  EXPECT_FALSE(direct_first.passed_on());
  EXPECT_TRUE(direct_first.passed_on());
}

TEST(StopRequests, SignalsToTheAgentAloneAreAtMostTheFirst) {
  StopRequests requests;
  EXPECT_TRUE(requests.direct());
  EXPECT_FALSE(requests.direct());
  EXPECT_FALSE(requests.direct());
}

}  // namespace
}  // namespace ddprun::agent
