#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>
#include <thread>
#include <utility>

#include "tests/worker/gpu/faults/fault.h"
#include "worker/collective/core/split.h"
#include "worker/collective/nccl/nccl_collective.h"
#include "worker/collective/shm/shm_collective.h"
#include "worker/startup/pipe_exchange.h"

namespace ddprun::worker {
namespace {

constexpr unsigned kLifeSeconds = 40;  // of a rank, whatever happens to it
constexpr double kToldWithin = 2;      // seconds, of a death
constexpr std::size_t kNumbers = 1 << 16;

std::unique_ptr<Collective> joined(const TwoRanks& how, int rank, int ranks, Exchange& exchange) {
  auto made = how.device == Device::kCuda
                  ? join_nccl({.rank = rank, .ranks = ranks, .timeout = how.timeout}, exchange)
                  : as_collective(
                        join_shm({.rank = rank, .ranks = ranks, .timeout = how.timeout}, exchange));
  if (!made) throw CollectiveError(made.error().message());
  return std::move(*made);
}

// NCCL 2.28 refuses two ranks on one GPU, unless it takes them for two hosts.
void become_a_host(int rank) {
  const std::string name = fmt::format("r{}", rank);
  ::setenv("NCCL_HOSTID", name.c_str(), 1);
  ::setenv("NCCL_SOCKET_IFNAME", "lo", 1);
  ::setenv("NCCL_NET", "Socket", 1);
}

int rank_main(const TwoRanks& how, int rank, Exchange& exchange, const RankBody& body) {
  ::alarm(kLifeSeconds);
  if (how.device == Device::kCuda) become_a_host(rank);
  try {
    const auto ranks = joined(how, rank, 2, exchange);
    body(*ranks);
    return 0;
  } catch (const std::exception& error) {
    fmt::print(stderr, "rank {}: {}\n", rank, error.what());
  }
  return 1;
}

Ticket launch_numbers(Collective& ranks, const std::shared_ptr<std::byte>& memory) {
  return ranks.launch_sum({memory.get(), kNumbers, Dtype::kFloat32});
}

bool ended_well(int status) { return WIFEXITED(status) && WEXITSTATUS(status) == 0; }

// Sums until the collective throws, and returns the reason.
std::string reason_of_end(Collective& ranks) {
  try {
    const auto memory = ranks.allocate(kNumbers * sizeof(float));
    for (;;) {
      ranks.wait(launch_numbers(ranks, memory));
      ranks.barrier();
    }
  } catch (const CollectiveError& error) {
    return error.what();
  }
}

// The clock of both processes is the same one (CLOCK_MONOTONIC).
[[noreturn]] void run_child(int pipe, const ChildBody& body) {
  try {
    body([pipe] {
      const auto now = FaultClock::now();
      require(::write(pipe, &now, sizeof now) == sizeof now, "the pipe is full");
    });
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
  }
  std::fflush(nullptr);
  ::_exit(1);
}

// A rank that dies as soon as it knows where the others meet.
class DiesWhenItHears final : public Exchange {
 public:
  explicit DiesWhenItHears(Exchange& inner) : inner_(inner) {}
  Result<void> arrive() override { return inner_.arrive(); }
  Result<void> announce(std::string_view text) override { return inner_.announce(text); }
  Result<std::string> hear() override {
    auto heard = inner_.hear();
    ::kill(::getpid(), SIGKILL);
    return heard;
  }
  Result<std::vector<std::string>> gather(int rank, std::string_view text) override {
    return inner_.gather(rank, text);
  }

 private:
  Exchange& inner_;
};

}  // namespace

std::unique_ptr<Collective> joined_alone(Device device, std::chrono::milliseconds timeout) {
  PipeExchange exchange(1);
  return joined({device, timeout}, 0, 1, exchange);
}

std::vector<int> run_two(const TwoRanks& how, const RankBody& body) {
  PipeExchange exchange(2);
  std::fflush(nullptr);
  std::vector<pid_t> children;
  for (int rank = 0; rank < 2; ++rank) {
    children.push_back(::fork());
    if (children.back() != 0) continue;
    const int code = rank_main(how, rank, exchange, body);
    std::fflush(nullptr);
    ::_exit(code);
  }
  std::vector<int> statuses;
  for (const pid_t child : children) ::waitpid(child, &statuses.emplace_back(), 0);
  return statuses;
}

double life_of_child(std::chrono::milliseconds limit, const ChildBody& body) {
  std::array<int, 2> pipe{};
  require(::pipe2(pipe.data(), O_CLOEXEC | O_NONBLOCK) == 0, "no pipe");
  sigset_t ended;
  ::sigemptyset(&ended);
  ::sigaddset(&ended, SIGCHLD);
  ::sigprocmask(SIG_BLOCK, &ended, nullptr);  // sigtimedwait() takes it, also one of before
  std::fflush(nullptr);
  const pid_t child = ::fork();
  if (child == 0) run_child(pipe[1], body);
  const timespec most{limit.count() / 1000, (limit.count() % 1000) * 1'000'000};
  ::sigtimedwait(&ended, nullptr, &most);
  const auto end = FaultClock::now();
  int status = 0;
  const bool is_gone = ::waitpid(child, &status, WNOHANG) == child;
  if (!is_gone) {
    ::kill(child, SIGKILL);
    ::waitpid(child, &status, 0);
  }
  FaultClock::time_point begun;
  require(::read(pipe[0], &begun, sizeof begun) == sizeof begun, "the fault never began");
  require(is_gone, fmt::format("the process lived on after {} ms", limit.count()));
  return std::chrono::duration<double>(end - begun).count();
}

// Rank 1 dies in the midst of sums. Rank 0 is told soon.
void killed_rank(Device device) {
  const auto statuses = run_two({.device = device}, [](Collective& ranks) {
    const auto memory = ranks.allocate(kNumbers * sizeof(float));
    ranks.wait(launch_numbers(ranks, memory));
    ranks.barrier();
    if (ranks.rank() == 1) ::kill(::getpid(), SIGKILL);
    const auto start = FaultClock::now();
    const std::string why = reason_of_end(ranks);
    const double seconds = seconds_since(start);
    fmt::print("told after {:.2f} s: {}\n", seconds, why);
    require(seconds <= kToldWithin, fmt::format("told after {:.2f} s", seconds));
  });
  require(ended_well(statuses[0]), "the rank that was left did not end well");
  require(WIFSIGNALED(statuses[1]), "rank 1 was not killed");
}

// Rank 1 hears where to meet, and dies. Rank 0 says at its limit that nobody came, and ends.
void a_peer_never_comes(Device device) {
  PipeExchange exchange(2);
  const TwoRanks how{device, std::chrono::seconds(3)};
  std::fflush(nullptr);
  const pid_t peer = ::fork();
  if (peer == 0) {
    ::alarm(kLifeSeconds);
    if (device == Device::kCuda) become_a_host(1);
    DiesWhenItHears dies(exchange);
    const auto ranks = joined(how, 1, 2, dies);
    ::_exit(1);
  }
  if (device == Device::kCuda) become_a_host(0);
  std::string why;
  const auto start = FaultClock::now();
  try {
    const auto ranks = joined(how, 0, 2, exchange);
    why = reason_of_end(*ranks);
  } catch (const CollectiveError& error) {
    why = error.what();
  }
  const double seconds = seconds_since(start);
  int status = 0;
  ::waitpid(peer, &status, 0);
  fmt::print("told after {:.2f} s: {}\n", seconds, why);
  require(WIFSIGNALED(status), "rank 1 never heard where to meet");
  require(seconds <= 12, "it took more than 12 s");
}

// One group of a process fails at its limit. The others of the process must not wait for theirs.
void groups_fail_together(Device device) {
  const auto statuses = run_two({device, std::chrono::seconds(8)}, [](Collective& ranks) {
    const auto group = ranks.split(0, ranks.rank());
    ranks.barrier();
    if (ranks.rank() == 1) ::kill(::getpid(), SIGKILL);
    const auto start = FaultClock::now();
    fmt::print("the group: {}\n", reason_of_end(*group));
    fmt::print("the world: {}\n", reason_of_end(ranks));
    require(seconds_since(start) <= 4, fmt::format("told after {:.2f} s", seconds_since(start)));
  });
  require(ended_well(statuses[0]), "the rank that was left did not end well");
}

// A second thread drops memory while the first one launches.
void memory_dropped_in_another_thread(Device device) {
  constexpr int kRounds = 200;
  const auto statuses = run_two({.device = device}, [](Collective& ranks) {
    const auto kept = ranks.allocate(kNumbers * sizeof(float));
    for (int round = 0; round < kRounds; ++round) {
      auto dropped = ranks.allocate(kNumbers * sizeof(float));
      ranks.wait(launch_numbers(ranks, dropped));
      ranks.barrier();  // it is over: nobody needs the memory any more
      std::thread drops([memory = std::move(dropped)]() mutable { memory.reset(); });
      ranks.wait(launch_numbers(ranks, kept));
      drops.join();
    }
    ranks.barrier();
  });
  require(ended_well(statuses[0]) && ended_well(statuses[1]), "a rank did not end well");
}

}  // namespace ddprun::worker
