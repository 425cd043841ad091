// The environment of this process.
#include "base/environment.h"

#include <gtest/gtest.h>

#include <cstdlib>

namespace ddprun {
namespace {

TEST(ProcessEnvironment, IsTheRealOne) {
  EXPECT_TRUE(process_environment()("PATH").has_value());
  EXPECT_EQ(process_environment()("DDPRUN_NO_SUCH_VARIABLE"), std::nullopt);
}

TEST(ProcessEnvironment, AVariableThatIsWipedIsGone) {
  ::setenv("DDPRUN_TEST_SECRET", "hidden", 1);
  wipe_variable("DDPRUN_TEST_SECRET");
  EXPECT_EQ(process_environment()("DDPRUN_TEST_SECRET"), std::nullopt);
}

}  // namespace
}  // namespace ddprun
