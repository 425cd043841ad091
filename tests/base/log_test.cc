// The writers of log lines.
#include "base/log.h"

#include <gtest/gtest.h>

#include <algorithm>
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

TEST(Log, IsOneLineWhateverOthersSay) {
  std::string written;
  log::set_writer([&](std::string_view line) { written += line; });
  log::error("peer: \x1b[2Jno\r\nE0101 00:00:00.000 1 ddprun] false\n[rank0]: false\u009b");
  log::error(std::string(1 << 20, 'x'));
  log::set_writer(nullptr);
  EXPECT_EQ(std::ranges::count(written, '\n'), 2) << written;
  for (const char* unwanted : {"\x1b", "\r", "\u009b"})
    EXPECT_EQ(written.find(unwanted), std::string::npos) << unwanted;
  EXPECT_LT(written.size(), std::size_t{32} * 1024);
}

}  // namespace
}  // namespace ddprun
