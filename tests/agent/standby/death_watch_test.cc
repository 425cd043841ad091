#include "agent/standby/death_watch.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <boost/asio/io_context.hpp>
#include <csignal>
#include <vector>

#include "agent/standby/worker_pages.h"
#include "tests/support/temporary_folder.h"

namespace ddprun::agent {
namespace {

// Processes that hold the locks of their pages until they are killed.
class DeathWatchTest : public FolderTest {
 protected:
  static constexpr int kWorkers = 3;

  void SetUp() override {
    FolderTest::SetUp();
    auto made = WorkerPages::make((folder / "pages").string(), kWorkers);
    ASSERT_TRUE(made.has_value()) << made.error().message();
    pages.emplace(std::move(*made));
    for (int i = 0; i < kWorkers; ++i) pages->begin(i, false);
  }

  void TearDown() override {
    for (const pid_t pid : workers) end(pid);
    FolderTest::TearDown();
  }

  pid_t hold(int rank) {
    int ready[2];
    EXPECT_EQ(::pipe(ready), 0);
    const pid_t pid = ::fork();
    if (pid == 0) {
      ::pthread_mutex_trylock(&pages->page(rank).lock);
      [[maybe_unused]] const auto written = ::write(ready[1], "x", 1);
      while (true) ::pause();
    }
    char byte = 0;
    EXPECT_EQ(::read(ready[0], &byte, 1), 1);
    ::close(ready[0]);
    ::close(ready[1]);
    workers.push_back(pid);
    return pid;
  }

  static void end(pid_t pid) {
    ::kill(pid, SIGKILL);
    ::waitpid(pid, nullptr, 0);
  }

  std::vector<std::atomic<std::uint32_t>*> locks() {
    std::vector<std::atomic<std::uint32_t>*> words;
    for (int i = 0; i < kWorkers; ++i) words.push_back(pages->page(i).lock_word());
    return words;
  }

  std::optional<WorkerPages> pages;
  std::vector<pid_t> workers;
  std::vector<int> noticed;
  asio::io_context loop{1};
  DeathWatch watch{loop, [this](int rank, Time /*noticed*/) { noticed.push_back(rank); }};
};

TEST_F(DeathWatchTest, TellsWhoDies) {
  hold(0);
  const pid_t second = hold(1);  // nobody holds the third
  watch.start(locks());
  const auto busy = asio::make_work_guard(loop);
  end(second);
  loop.run_one_for(std::chrono::seconds(30));
  EXPECT_EQ(noticed, std::vector<int>{1});
  // A later worker of that rank has a new lock.
  pages->begin(1, false);
  const pid_t third = hold(1);
  watch.start(locks());
  end(third);
  loop.run_one_for(std::chrono::seconds(30));
  EXPECT_EQ(noticed, (std::vector<int>{1, 1}));
}

TEST_F(DeathWatchTest, TellsOfADeathBeforeItsStart) {
  end(hold(2));
  watch.start(locks());
  const auto busy = asio::make_work_guard(loop);
  loop.run_one_for(std::chrono::seconds(30));
  EXPECT_EQ(noticed, std::vector<int>{2});
}

TEST_F(DeathWatchTest, IsSilentAfterItsStop) {
  const pid_t first = hold(0);
  watch.start(locks());
  watch.stop();
  end(first);
  loop.run();
  // A death that was noticed and not yet told is not told either.
  watch.start(locks());
  watch.stop();
  loop.restart();
  loop.poll();
  EXPECT_TRUE(noticed.empty());
}

}  // namespace
}  // namespace ddprun::agent
