#include <ddprun/process.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <iterator>
#include <span>
#include <stdexcept>
#include <string>

namespace ddprun::worker {
namespace {

using Clock = std::chrono::steady_clock;

// Descriptors of this process. A segment that ranks share has no name: it is gone with those that
// hold it. So nothing is left of it if no rank is left and we hold nothing more than before.
std::ptrdiff_t descriptors() {
  return std::distance(std::filesystem::directory_iterator("/proc/self/fd"),
                       std::filesystem::directory_iterator());
}

TEST(Spawn, RanksMeet) {
  for (const int ranks : {1, 2, 4}) {
    spawn(ranks, [ranks](Process& process) {
      const auto mine = static_cast<double>(process.world.rank);
      std::array values{mine, 1.0};
      process.collective->sum(values);
      if (values[0] != ranks * (ranks - 1) / 2.0 || values[1] != ranks)
        throw std::runtime_error("a wrong sum");
      if (process.world.world_size != ranks || process.collective->rank() != process.world.rank ||
          process.world.local_rank != process.world.rank || process.launched)
        throw std::runtime_error("a wrong world");
    });
  }
}

// While one of four ranks fails the others wait for it in a sum.
TEST(Spawn, TellsRankAndReasonAtOnceAndLeavesNothing) {
  struct Case {
    std::function<void()> end;
    std::string message;
  };
  const std::array cases{
      Case{[] { throw std::runtime_error("bad sample"); }, "rank 2: bad sample"},
      Case{[] { std::abort(); }, "rank 2: killed by signal 6 (Aborted)"},
      Case{[] { ::kill(::getpid(), SIGKILL); }, "rank 2: killed by signal 9 (Killed)"},
      Case{[] { std::exit(3); }, "rank 2: exited with code 3"},
  };
  const auto before = descriptors();
  for (const Case& example : cases) {
    std::array<int, 2> pipe{};
    ASSERT_EQ(::pipe(pipe.data()), 0);
    std::string message = "no error";
    try {
      spawn(4, [&](Process& process) {
        process.collective->barrier();
        if (process.world.rank == 2) {
          const auto now = Clock::now();
          if (::write(pipe[1], &now, sizeof now) != sizeof now) ::_exit(9);
          example.end();
        }
        process.collective->barrier();
      });
    } catch (const SpawnError& error) {
      message = error.what();
    }
    const auto known = Clock::now();
    Clock::time_point failed;
    ASSERT_EQ(::read(pipe[0], &failed, sizeof failed), sizeof failed);
    ::close(pipe[0]);
    ::close(pipe[1]);
    EXPECT_EQ(message, example.message);
    EXPECT_LT(std::chrono::duration<double>(known - failed).count(), 0.5) << message;
    EXPECT_EQ(::waitpid(-1, nullptr, WNOHANG), -1) << "a rank is left";
    EXPECT_EQ(descriptors(), before);
  }
}

TEST(Spawn, RefusesAWrongNumberOfRanks) {
  EXPECT_THROW(spawn(0, [](Process&) {}), std::invalid_argument);
  EXPECT_THROW(spawn(1000, [](Process&) {}), std::invalid_argument);
}

}  // namespace
}  // namespace ddprun::worker
