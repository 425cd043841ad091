#include "worker/startup/rank_processes.h"

#include <ddprun/collective.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <stdexcept>
#include <string>
#include <thread>

#include "base/file_handle.h"

namespace ddprun::worker {
namespace {

// Numbers that the ranks and the test share.
class Shared {
 public:
  Shared()
      : numbers_(static_cast<std::atomic<int>*>(
            ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0))) {}
  Shared(const Shared&) = delete;
  Shared& operator=(const Shared&) = delete;
  Shared(Shared&&) = delete;
  Shared& operator=(Shared&&) = delete;
  ~Shared() { ::munmap(numbers_, kBytes); }

  std::atomic<int>& operator[](int index) { return numbers_[index]; }
  void await(int index, int value) const {
    while (numbers_[index] < value) std::this_thread::yield();
  }

 private:
  static constexpr std::size_t kBytes = 4096;
  std::atomic<int>* numbers_;
};

SpawnError error_of(int ranks, const std::function<void(int)>& body) {
  try {
    run_rank_processes(ranks, body);
  } catch (const SpawnError& error) {
    return error;
  }
  return {-1, "no error", std::nullopt, std::nullopt};
}

// Returns whether the process, no child of ours, ends soon. A zombie has ended: a container may
// have nobody who collects it.
bool dies(pid_t pid) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  const auto path = "/proc/" + std::to_string(pid) + "/exe";  // a zombie has none
  std::array<char, 8> target{};
  while (::readlink(path.c_str(), target.data(), target.size()) > 0) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::yield();
  }
  return true;
}

[[noreturn]] void hang() {
  for (;;) ::pause();
}

TEST(RankProcesses, RunEachRankOnce) {
  Shared ran;
  run_rank_processes(5, [&](int rank) { ran[rank] += rank + 1; });
  for (int rank = 0; rank < 5; ++rank) EXPECT_EQ(ran[rank], rank + 1);
}

// The others would run for ever, and each has a child that would, too.
TEST(RankProcesses, TheFirstBadEndEndsAll) {
  struct Case {
    std::function<void()> end;
    std::string message;
    std::optional<int> exit_code, signal;
  };
  const std::array cases{
      Case{[] { throw std::runtime_error("no such file"); }, "rank 2: no such file", 1, {}},
      Case{[] { throw 3; }, "rank 2: threw what is no std::exception", 1, {}},
      Case{[] { std::abort(); }, "rank 2: killed by signal 6 (Aborted)", {}, SIGABRT},
      Case{[] { ::raise(SIGKILL); }, "rank 2: killed by signal 9 (Killed)", {}, SIGKILL},
      Case{[] { ::_exit(3); }, "rank 2: exited with code 3", 3, {}},
  };
  for (const Case& example : cases) {
    Shared pids;
    const auto error = error_of(4, [&](int rank) {
      const pid_t child = ::fork();
      if (child == 0) hang();
      pids[rank] = child;
      pids[10] += 1;
      pids.await(10, 4);
      if (rank != 2) hang();
      example.end();
    });
    EXPECT_EQ(error.what(), example.message);
    EXPECT_EQ(error.rank(), 2);
    EXPECT_EQ(error.exit_code(), example.exit_code);
    EXPECT_EQ(error.signal(), example.signal);
    EXPECT_EQ(::waitpid(-1, nullptr, WNOHANG), -1);  // no rank is left, not even as a zombie
    EXPECT_EQ(errno, ECHILD);
    for (int rank = 0; rank < 4; ++rank) EXPECT_TRUE(dies(pids[rank])) << rank;
  }
}

TEST(RankProcesses, NamesTheCauseAndNotWhatFollowedFromIt) {
  Shared pids;
  const auto error = error_of(3, [&](int rank) {
    if (rank == 0) {
      pids[0] = ::getpid();
      throw CollectiveError("rank 1 is gone");
    }
    pids.await(0, 1);
    if (rank == 2) hang();
    while (::kill(pids[0], 0) == 0) std::this_thread::yield();  // the other end has been seen first
    throw std::runtime_error("out of data");
  });
  EXPECT_STREQ(error.what(), "rank 1: out of data");
  EXPECT_STREQ(error_of(2,
                        [](int rank) {
                          if (rank == 1) throw CollectiveError("alone");
                          hang();
                        })
                   .what(),
               "rank 1: alone");
}

// LibTorch's static objects take half a second to destroy on a busy machine.
TEST(RankProcesses, ExitCallsWhatTheRankHasRegisteredAlone) {
  static Shared& calls = *new Shared;  // until the process has ended
  std::atexit([] { ++calls[0]; });
  const auto error = error_of(1, [](int) {
    std::atexit([] { ++calls[1]; });
    std::exit(3);
  });
  EXPECT_STREQ(error.what(), "rank 0: exited with code 3");
  EXPECT_EQ(calls[0], 0);
  EXPECT_EQ(calls[1], 1);
}

TEST(RankProcesses, DieWithTheOneThatForkedThem) {
  Shared pids;
  const pid_t parent = ::fork();
  if (parent == 0) {
    run_rank_processes(2, [&](int rank) {
      pids[rank] = ::getpid();
      hang();
    });
    ::_exit(0);
  }
  pids.await(0, 1);
  pids.await(1, 1);
  ::kill(parent, SIGKILL);
  ::waitpid(parent, nullptr, 0);
  for (int rank = 0; rank < 2; ++rank) EXPECT_TRUE(dies(pids[rank])) << rank;
}

TEST(RankProcesses, EndAsTheyDidWhereSigchldIsIgnored) {
  ::signal(SIGCHLD, SIG_IGN);
  run_rank_processes(2, [](int) {});
  EXPECT_EQ(error_of(1, [](int) { ::raise(SIGRTMIN); }).what(),
            "rank 0: killed by signal " + std::to_string(SIGRTMIN) + " (a real-time signal)");
  EXPECT_EQ(::signal(SIGCHLD, SIG_DFL), SIG_IGN);
}

// A terminal would stop a rank that reads it.
TEST(RankProcesses, ReadNothing) {
  run_rank_processes(1, [](int) {
    char byte = 0;
    ::_exit(::read(STDIN_FILENO, &byte, 1) == 0 ? 0 : 1);
  });
}

TEST(RankProcesses, RefuseWhatCannotWork) {
  const auto nothing = [](int) {};
  EXPECT_THROW(run_rank_processes(0, nothing), std::invalid_argument);
  EXPECT_THROW(run_rank_processes(101, nothing), std::invalid_argument);
  std::atomic<bool> done = false;
  std::jthread other([&] {
    while (!done) std::this_thread::yield();
  });
  EXPECT_THROW(run_rank_processes(2, nothing), std::logic_error);
  done = true;
}

TEST(RankProcesses, RefuseAProcessThatHasBegunWithCuda) {
  const std::string path = "/dev/nvidia-of-a-test-" + std::to_string(::getpid());
  const FileHandle file(::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (file.get() < 0) GTEST_SKIP() << "no file can be made in /dev: " << std::strerror(errno);
  std::string refusal;
  try {
    run_rank_processes(2, [](int) {});
  } catch (const std::logic_error& error) {
    refusal = error.what();
  }
  ::unlink(path.c_str());
  EXPECT_NE(refusal.find("has opened " + path), std::string::npos) << refusal;
}

}  // namespace
}  // namespace ddprun::worker
