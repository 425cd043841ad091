// Where log lines go.
#include "proto/log.h"

#include <gtest/gtest.h>

#include <string>

namespace ddprun {
namespace {

TEST(Log, GoesToTheWriterAsWholeLinesAndToStderrWithoutOne) {
  std::string written;
  log::set_writer([&](std::string_view line) { written += line; });
  log::warning("first {}");
  log::error("second");
  log::info("below the level");
  log::set_writer(nullptr);
  EXPECT_TRUE(written.starts_with("W") && written.ends_with(" ddprun] second\n")) << written;
  EXPECT_NE(written.find("ddprun] first {}\nE"), std::string::npos) << written;
  EXPECT_EQ(written.find("below"), std::string::npos);

  const std::string before = written;
  testing::internal::CaptureStderr();
  log::warning("third");
  EXPECT_TRUE(testing::internal::GetCapturedStderr().ends_with("ddprun] third\n"));
  EXPECT_EQ(written, before);
}

}  // namespace
}  // namespace ddprun
