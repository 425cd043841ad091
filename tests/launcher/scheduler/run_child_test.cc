#include "launcher/scheduler/run_child.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <thread>

namespace ddprun::launcher {
namespace {

using Clock = std::chrono::steady_clock;

Clock::time_point soon() { return Clock::now() + std::chrono::seconds(30); }

std::ptrdiff_t threads_here() {
  return std::distance(std::filesystem::directory_iterator("/proc/self/task"), {});
}

TEST(RunChild, HasTheWholeAnswer) {
  const std::string large(1U << 20U, 'x');
  EXPECT_EQ(run_child([&] { return large; }, soon()), large);
  EXPECT_EQ(run_child([] { return std::string("a\0b", 3); }, soon()), std::string("a\0b", 3));
}

TEST(RunChild, HasNoneOfAChildThatDies) {
  EXPECT_EQ(run_child([]() -> std::string { ::_exit(0); }, soon()), std::nullopt);
  EXPECT_EQ(run_child([] { return std::string(); }, soon()), std::nullopt);
}

TEST(RunChild, DoesNotWaitForOneThatHangs) {
  const auto begin = Clock::now();
  const auto hang = []() -> std::string {
    while (true) ::pause();
  };
  EXPECT_EQ(run_child(hang, begin + std::chrono::milliseconds(50)), std::nullopt);
  EXPECT_LT(Clock::now() - begin, std::chrono::seconds(20));
}

// An agent is forked later, and a fork copies one thread alone.
TEST(RunChild, LeavesNoThreadAndNoProcess) {
  const auto before = threads_here();
  const auto question = [] {
    std::thread([] {
      while (true) ::pause();
    }).detach();
    return std::to_string(::getpid());
  };
  const auto pid = run_child(question, soon());
  ASSERT_TRUE(pid.has_value());
  EXPECT_EQ(threads_here(), before);
  EXPECT_FALSE(std::filesystem::exists("/proc/" + *pid));
}

}  // namespace
}  // namespace ddprun::launcher
