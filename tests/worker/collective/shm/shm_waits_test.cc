// Ranks that wait: what it costs them, how soon they notice a death, and peers whose pids mean
// nothing here.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <ctime>
#include <string>

#include "tests/worker/forked_ranks.h"
#include "worker/collective/shm/shm_peers.h"

namespace ddprun::worker {
namespace {

using namespace std::chrono_literals;

// Goes on as the first process of a new pid namespace. The old process ends with it.
void enter_new_pid_namespace() {
  if (::unshare(CLONE_NEWPID) != 0) throw std::runtime_error(std::strerror(errno));
  const pid_t inner = ::fork();
  if (inner != 0) {
    int status = 1;
    ::waitpid(inner, &status, 0);
    ::_exit(WIFEXITED(status) ? WEXITSTATUS(status) : 1);
  }
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
}

// Says why the kernel gives this user no pid namespace. Empty if it does.
std::string no_pid_namespace() {
  const pid_t trial = ::fork();
  if (trial == 0) ::_exit(::unshare(CLONE_NEWPID) == 0 ? 0 : errno);
  int status = 0;
  ::waitpid(trial, &status, 0);
  return status == 0 ? ""
                     : fmt::format("a new pid namespace: {}", std::strerror(WEXITSTATUS(status)));
}

// Rank 1 is in a pid namespace of its own, with the /proc of rank 0.
Result<std::unique_ptr<Collective>> join_from_two_namespaces(int rank, const RanksOptions& options,
                                                             Exchange& exchange) {
  if (rank == 1) enter_new_pid_namespace();
  return join_by_shm(rank, options, exchange);
}

TEST(ShmWaits, TakeNoPeerOfAnotherPidNamespaceForDead) {
  if (const auto why = no_pid_namespace(); !why.empty()) GTEST_SKIP() << why;
  std::array<int, 2> said{};
  ASSERT_EQ(::pipe(said.data()), 0);
  run_ranks({.ranks = 2, .join = join_from_two_namespaces}, [&said](Collective& collective) {
    if (collective.rank() == 0) {
      // The other one looks some fifty times meanwhile, and says so if it gives up.
      pollfd word{.fd = said[0], .events = POLLIN, .revents = 0};
      EXPECT_EQ(::poll(&word, 1, static_cast<int>((50 * kWaitSlice).count())), 0);
    }
    const auto message = message_of([&] { collective.barrier(); });
    EXPECT_EQ(message, "");
    if (!message.empty()) {
      EXPECT_EQ(::write(said[1], "w", 1), 1);
    }
  });
}

TEST(ShmWaits, EndAtTheDeadlineWhereAPeerOfAnotherPidNamespaceHasDied) {
  if (const auto why = no_pid_namespace(); !why.empty()) GTEST_SKIP() << why;
  const auto statuses = run_ranks_to_end(
      {.ranks = 2, .timeout = 2000ms, .join = join_from_two_namespaces},
      [](Collective& collective) {
        collective.barrier();
        if (collective.rank() == 0) ::raise(SIGKILL);
        const auto message = message_of([&] { collective.barrier(); });
        EXPECT_NE(message.find("rank 0 did not come within 2 s"), std::string::npos) << message;
      });
  EXPECT_TRUE(WIFSIGNALED(statuses[0]));
  EXPECT_EQ(statuses[1], 0);
}

TEST(ShmWaits, SayThatAPeerHasLeft) {
  std::array<int, 2> done{};
  ASSERT_EQ(::pipe(done.data()), 0);
  const auto join = [&done](int rank, const RanksOptions& options, Exchange& exchange) {
    auto joined = join_by_shm(rank, options, exchange);
    if (rank != 1 || !joined) return joined;
    (*joined)->barrier();
    joined->reset();
    char word = 0;  // this process lives until the other one has heard of it
    EXPECT_EQ(::read(done[0], &word, 1), 1);
    return Result<std::unique_ptr<Collective>>(make_alone_collective());
  };
  run_ranks({.ranks = 2, .timeout = 600s, .join = join}, [&done](Collective& collective) {
    if (collective.world_size() == 1) return;
    collective.barrier();
    const auto message = message_of([&] { collective.barrier(); });
    EXPECT_NE(
        message.find(" has left: its program has destroyed its collective; its last operation "
                     "was barrier (operation "),
        std::string::npos)
        << message;
    EXPECT_NE(message.find("; rank 0 waits in barrier (operation "), std::string::npos) << message;
    EXPECT_EQ(::write(done[1], "w", 1), 1);
  });
}

std::chrono::nanoseconds cpu_time() {
  timespec now{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return std::chrono::seconds(now.tv_sec) + std::chrono::nanoseconds(now.tv_nsec);
}

TEST(ShmWaits, CostLittle) {
  constexpr auto kWait = 1000ms;
  run_ranks(2, [kWait](Collective& collective) {
    collective.barrier();
    if (collective.rank() == 1) ::poll(nullptr, 0, kWait.count());
    const auto before = cpu_time();
    const auto since = std::chrono::steady_clock::now();
    collective.barrier();
    if (collective.rank() != 0) return;
    const std::chrono::duration<double> cost = cpu_time() - before;
    const std::chrono::duration<double> waited = std::chrono::steady_clock::now() - since;
    const double share = cost / waited;
    fmt::print("a rank that waits: {:.1f} ms of CPU time a second\n", share * 1e3);
    EXPECT_LT(share, 0.1);
  });
}

}  // namespace
}  // namespace ddprun::worker
