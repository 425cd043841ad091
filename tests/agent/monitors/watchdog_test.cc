// The watchdog's FIFO and its timer: a real FIFO, and a process of our own to be killed.
#include "agent/monitors/watchdog.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <memory>
#include <string>

#include "base/file_handle.h"
#include "base/log.h"
#include "tests/support/temporary_folder.h"

namespace ddprun::agent {
namespace {

class WatchdogTest : public FolderTest {
 protected:
  void SetUp() override {
    FolderTest::SetUp();
    auto made = Watchdog::make(loop, folder / "fifo", [](int) { return true; });
    ASSERT_TRUE(made.has_value()) << made.error().message();
    watchdog = std::move(*made);
    writer = FileHandle(::open((folder / "fifo").c_str(), O_WRONLY | O_CLOEXEC));
  }
  void ask(int pid, const std::string& expiration_time) {
    const std::string line =
        fmt::format(R"({{"version":1,"pid":{},"scope_id":"s","expiration_time":{},"signal":9}})",
                    pid, expiration_time);
    ASSERT_EQ(::write(writer.get(), (line + "\n").c_str(), line.size() + 1),
              static_cast<ssize_t>(line.size() + 1));
  }

  asio::io_context loop{1};
  std::unique_ptr<Watchdog> watchdog;
  FileHandle writer;
};

TEST_F(WatchdogTest, ADeadlineBeyondAllTimeNeitherFiresNorKeepsTheLoopBusy) {
  for (const char* far : {"1e10", "1e18", "1e300"}) {
    ask(999'999'999, far);
    std::size_t handled = 0;
    for (int turn = 0; turn < 100; ++turn) handled += loop.poll_one();
    EXPECT_LE(handled, 3U) << far;  // the request, and the timer that it sets anew
  }
}

TEST_F(WatchdogTest, TakesNoFifoOfAnotherUser) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root may give a file to another user";
  const std::string path = folder / "other";
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  EXPECT_TRUE(Watchdog::make(loop, path, [](int) { return true; }).has_value()) << "our own";
  ASSERT_EQ(::chown(path.c_str(), 65534, 65534), 0);
  const auto made = Watchdog::make(loop, path, [](int) { return true; });
  ASSERT_FALSE(made.has_value());
  EXPECT_NE(made.error().message().find("belongs to another user (uid 65534)"), std::string::npos);
}

TEST_F(WatchdogTest, MakesItsOwnFifoWhereNobodyElseCanPutOne) {
  std::string path;
  {
    const auto made = Watchdog::make(loop, "", [](int) { return true; });
    ASSERT_TRUE(made.has_value()) << made.error().message();
    path = (*made)->path();
    struct stat facts {};
    ASSERT_EQ(::stat(path.substr(0, path.rfind('/')).c_str(), &facts), 0);
    EXPECT_EQ(facts.st_mode & 07777, 0700U);
    EXPECT_EQ(facts.st_uid, ::geteuid());
  }
  EXPECT_NE(::access(path.substr(0, path.rfind('/')).c_str(), F_OK), 0) << "gone with its owner";
}

// The word on it may wait for a console.
TEST_F(WatchdogTest, KillsTheProcessThatMissedItsDeadlineAndThenSaysSo) {
  const pid_t late = ::fork();
  if (late == 0) {
    while (true) ::pause();
  }
  siginfo_t dead{};
  log::set_writer([&](std::string_view) {
    pollfd ended{static_cast<int>(::syscall(SYS_pidfd_open, late, 0)), POLLIN, 0};
    ::poll(&ended, 1, 10'000);
    ::close(ended.fd);
    ::waitid(P_PID, static_cast<id_t>(late), &dead, WEXITED | WNOHANG | WNOWAIT);
  });
  ask(late, "1");
  loop.run_one();
  log::set_writer(nullptr);
  EXPECT_EQ(dead.si_pid, late) << "dead before the word";
  int status = 0;
  EXPECT_EQ(::waitpid(late, &status, 0), late);
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
}

}  // namespace
}  // namespace ddprun::agent
