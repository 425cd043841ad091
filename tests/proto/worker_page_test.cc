#include "proto/worker_page.h"

#include <gtest/gtest.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <fstream>
#include <string>
#include <thread>

namespace ddprun {
namespace {

// The second page of a file, by a path with a colon in it.
TEST(WorkerPage, IsWrittenThroughTheFileThatTheVariableNames) {
  const std::string path = testing::TempDir() + "pages:" + std::to_string(::getpid());
  std::ofstream(path) << std::string(2 * kWorkerPageBytes, '\0');
  ::setenv(kWorkerPageVariable, ("192:384:0:" + path).c_str(), 1);
  note_first_line(own_worker_page());
  count_step(own_worker_page());
  count_step(own_worker_page());
  std::ifstream file(path, std::ios::binary);
  std::uint64_t words[48];
  file.read(reinterpret_cast<char*>(words), sizeof(words));
  EXPECT_EQ(words[0], 0U);
  EXPECT_EQ(words[24], 2U);         // steps
  EXPECT_GE(words[25], words[26]);  // the last one, the first one
  EXPECT_GE(words[26], words[27]);  // the first line
  EXPECT_GT(words[27], 0U);
  ::unlink(path.c_str());
}

// A page in which `order` holds for the end of step 2.
struct WorkerOrder : testing::Test {
  void give(const PageOrder& order, std::uint64_t step = 2) {
    page.order_step = step;
    page.order = pack(order);
    ::syscall(SYS_futex, &page.order, FUTEX_WAKE, 1, nullptr, nullptr, 0);
  }

  WorkerPage page{};
};

TEST_F(WorkerOrder, IsTheSameWhenItIsUnpacked) {
  const PageOrder order{.number = 1U << 29, .is_taken = true, .is_end = true, .signo = SIGTERM};
  EXPECT_EQ(unpack_order(pack(order)), order);
  EXPECT_EQ(pack({}), 0U);
}

TEST_F(WorkerOrder, TheSignalComesAfterTheStepAndOnce) {
  static volatile std::sig_atomic_t got;
  got = 0;
  const auto before = std::signal(SIGUSR1, [](int) { got = got + 1; });
  give({.number = 4, .is_taken = true, .is_end = true, .signo = SIGUSR1});
  count_step(page);
  EXPECT_EQ(got, 0);
  count_step(page);
  EXPECT_EQ(got, 1);
  EXPECT_EQ(page.taken, 4U);
  count_step(page);
  EXPECT_EQ(got, 1);
  std::signal(SIGUSR1, before);
}

TEST_F(WorkerOrder, AProgramThatAsksGetsNoSignal) {
  give({.number = 4, .is_taken = true, .is_end = true, .signo = SIGKILL});
  EXPECT_FALSE(is_ending(page));
  count_step(page);
  EXPECT_FALSE(is_ending(page));
  count_step(page);
  EXPECT_TRUE(is_ending(page));
  EXPECT_EQ(page.taken, kAsksItself | 4U);
}

TEST_F(WorkerOrder, ACheckpointIsNoEnd) {
  give({.number = 4, .is_taken = true}, 0);
  EXPECT_FALSE(is_ending(page));
}

TEST_F(WorkerOrder, AStepThatIsHeldWaitsForTheNextOrder) {
  give({.number = 4, .is_end = true});
  std::thread worker([this] {
    for (int step = 0; step < 3; ++step) count_step(page);
  });
  while (page.steps < 2) std::this_thread::yield();
  give({.number = 5, .is_end = true}, 3);
  while (page.steps < 3) std::this_thread::yield();
  EXPECT_EQ(page.taken, 0U);
  give({}, 0);
  worker.join();
  EXPECT_EQ(page.steps, 3U);
}

}  // namespace
}  // namespace ddprun
