// The ends of processes. tests/old_kernel runs this where there are no pidfds, too.
#include "base/process_end.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>

namespace ddprun {
namespace {

using Clock = std::chrono::steady_clock;

// A process that waits until it is killed.
pid_t waiting_child() {
  const pid_t child = ::fork();
  if (child == 0)
    while (true) ::pause();
  return child;
}

TEST(ProcessEnd, OfOneThatLivesIsNotYet) {
  const pid_t child = waiting_child();
  EXPECT_FALSE(has_ended(child));
  EXPECT_FALSE(has_ended(::getppid())) << "no child of ours";
  const auto begin = Clock::now();
  EXPECT_FALSE(ends_by(child, begin + std::chrono::milliseconds(30)));
  EXPECT_GE(Clock::now(), begin + std::chrono::milliseconds(30));
  EXPECT_FALSE(ends_by(child, begin)) << "a time that is over";
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
}

TEST(ProcessEnd, OfOneThatIsKilledIsSeen) {
  const pid_t child = waiting_child();
  ::kill(child, SIGKILL);
  EXPECT_TRUE(ends_by(child, Clock::now() + std::chrono::seconds(30)));
  EXPECT_TRUE(has_ended(child)) << "a zombie";
  EXPECT_EQ(::waitpid(child, nullptr, 0), child) << "it was left to us";
  EXPECT_TRUE(has_ended(child)) << "gone";
  EXPECT_TRUE(ends_by(child, Clock::now()));
}

TEST(ProcessEnd, OfAnothersChildIsSeen) {
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  const pid_t parent = ::fork();
  if (parent == 0) {
    const pid_t child = waiting_child();
    [[maybe_unused]] const auto written = ::write(ends[1], &child, sizeof(child));
    while (true) ::pause();  // it never collects the child
  }
  pid_t child = 0;
  ASSERT_EQ(::read(ends[0], &child, sizeof(child)), static_cast<ssize_t>(sizeof(child)));
  EXPECT_FALSE(has_ended(child));
  ::kill(child, SIGKILL);
  EXPECT_TRUE(ends_by(child, Clock::now() + std::chrono::seconds(30)));
  EXPECT_TRUE(has_ended(child));
  ::kill(parent, SIGKILL);
  ::waitpid(parent, nullptr, 0);
  ::close(ends[0]);
  ::close(ends[1]);
}

}  // namespace
}  // namespace ddprun
