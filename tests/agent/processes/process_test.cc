// The facts of a process in /proc, also while it goes.
#include "agent/processes/process.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <string>
#include <thread>

#include "base/process_end.h"

namespace ddprun::agent {
namespace {

TEST(Process, StatIsThatOfTheProcess) {
  const auto own = read_process_stat(::getpid());
  ASSERT_TRUE(own.has_value());
  EXPECT_EQ(own->parent, ::getppid());
  EXPECT_EQ(own->session, ::getsid(0));
  EXPECT_EQ(own->state, 'R');
  EXPECT_GT(own->started, 0U);
  EXPECT_FALSE(own->is_dead());
  EXPECT_FALSE(process_name(::getpid()).empty());
}

TEST(Process, OneThatIsGoneIsNothing) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(0);
  ASSERT_TRUE(ends_by(child, std::chrono::steady_clock::now() + std::chrono::seconds(10)));
  EXPECT_EQ(read_process_stat(child)->state, 'Z');
  EXPECT_TRUE(read_process_stat(child)->is_dead());
  ASSERT_EQ(::waitpid(child, nullptr, 0), child);
  EXPECT_EQ(read_process_stat(child), std::nullopt);
  EXPECT_EQ(process_name(child), "");
  EXPECT_EQ(read_proc_file(child, "environ"), "");
}

// A file of /proc that is open while its process goes gives ESRCH to the read.
TEST(Process, OneThatGoesWhileItIsReadIsNothing) {
  std::atomic<pid_t> latest{0};
  std::atomic<bool> over{false};
  std::thread reader([&] {
    while (!over) {
      const pid_t pid = latest;
      if (pid == 0) continue;
      const auto stat = read_process_stat(pid);
      EXPECT_TRUE(!stat || stat->state != '?');
      read_proc_file(pid, "environ");
      wait_channel(pid);
    }
  });
  for (int count = 0; count < 500; ++count) {
    const pid_t child = ::fork();
    if (child == 0) ::_exit(0);
    latest = child;
    ::waitpid(child, nullptr, 0);
  }
  over = true;
  reader.join();
}

}  // namespace
}  // namespace ddprun::agent
