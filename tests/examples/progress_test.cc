#include "examples/common/progress.h"

#include <gtest/gtest.h>

namespace ddprun::examples {
namespace {

constexpr const char* kErase = "\r\033[K";

TEST(Progress, RewritesOneLineOnATerminal) {
  Progress progress(ProgressMode::kAuto, true);
  EXPECT_EQ(progress.line("start"), "start\n");
  EXPECT_EQ(progress.step("one"), std::string(kErase) + "one");
  EXPECT_EQ(progress.step("two"), std::string(kErase) + "two");
  EXPECT_EQ(progress.line("done"), std::string(kErase) + "done\n");
  EXPECT_EQ(progress.line("accuracy=0.9"), "accuracy=0.9\n") << "no step line stands in its way";
}

TEST(Progress, WritesPlainLinesElsewhere) {
  Progress progress(ProgressMode::kAuto, false);
  EXPECT_EQ(progress.step("one"), "one\n");
  EXPECT_EQ(progress.line("done"), "done\n");
}

TEST(Progress, RewritesAnywhereWhenTold) {
  EXPECT_EQ(Progress(ProgressMode::kAlways, false).step("one"), std::string(kErase) + "one");
}

TEST(Progress, LeavesStepsOutWhenTold) {
  Progress progress(ProgressMode::kNever, true);
  EXPECT_EQ(progress.step("one"), "");
  EXPECT_EQ(progress.line("done"), "done\n");
}

}  // namespace
}  // namespace ddprun::examples
