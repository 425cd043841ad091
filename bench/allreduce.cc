// Our side of bench/allreduce. It forks the ranks, sums float32 buffers of several sizes over
// shared memory and prints one line of JSON for each size. The line has the time of one sum on rank
// 0 in microseconds, from launch to complete, as a training step sees it.
//   bench-allreduce RANKS BYTES:REPETITIONS…
#include <fmt/format.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <string_view>
#include <vector>

#include "worker/shm/shm_collective.h"
#include "worker/startup/pipe_exchange.h"

namespace {

using ddprun::worker::Collective;

// Not counted: the first sums touch the pages and fill the caches.
constexpr int kWarmUps = 5;

// Of one wait for the other ranks.
constexpr std::chrono::seconds kTimeout{60};

// Of the whole life of a rank. SIGALRM kills a rank that hangs, so that waitpid() below ends.
constexpr unsigned kLifeSeconds = 240;

struct Size {
  std::size_t bytes = 0;
  std::size_t repetitions = 0;
};

template <typename Number>
bool parse(std::string_view text, Number& number) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() && end == text.data() + text.size();
}

bool parse_size(std::string_view text, Size& size) {
  const auto colon = text.find(':');
  return colon != std::string_view::npos && parse(text.substr(0, colon), size.bytes) &&
         parse(text.substr(colon + 1), size.repetitions) && size.repetitions > 0;
}

// The microseconds of each repetition. The ranks need no barrier between two sums: a sum is
// complete on one rank only when all have added their chunks.
std::vector<double> time_sums(Collective& collective, const Size& size) {
  using Clock = std::chrono::steady_clock;
  const auto memory = collective.allocate(size.bytes);
  const ddprun::worker::Flat flat{memory.get(), size.bytes / sizeof(float),
                                  ddprun::worker::Dtype::kFloat32};
  std::vector<double> times;
  for (int i = 0; i < kWarmUps; ++i) collective.wait(collective.launch_sum(flat));
  for (std::size_t i = 0; i < size.repetitions; ++i) {
    const auto start = Clock::now();
    collective.wait(collective.launch_sum(flat));
    times.push_back(std::chrono::duration<double, std::micro>(Clock::now() - start).count());
  }
  return times;
}

void print(const Size& size, std::vector<double> times) {
  std::ranges::sort(times);
  const auto quantile = [&](double q) {
    return times[static_cast<std::size_t>(q * static_cast<double>(times.size() - 1))];
  };
  fmt::print("{{\"bytes\": {}, \"p10_us\": {:.2f}, \"median_us\": {:.2f}, \"p90_us\": {:.2f}}}\n",
             size.bytes, quantile(0.1), quantile(0.5), quantile(0.9));
}

int run_rank(int rank, int ranks, const std::vector<Size>& sizes,
             ddprun::worker::Exchange& exchange) {
  try {
    auto collective = ddprun::worker::join_shm({rank, ranks, kTimeout}, exchange);
    if (!collective) {
      throw ddprun::worker::CollectiveError(collective.error().message());
    }
    for (const Size& size : sizes) {
      auto times = time_sums(**collective, size);
      if (rank == 0) print(size, std::move(times));
    }
  } catch (const ddprun::worker::LoggedError&) {
    return 1;
  } catch (const ddprun::worker::CollectiveError& error) {
    fmt::print(stderr, "bench-allreduce: {}\n", error.what());
    return 1;
  }
  return 0;
}

int run_ranks(int ranks, const std::vector<Size>& sizes) {
  ddprun::worker::PipeExchange exchange(ranks);
  std::vector<pid_t> children;
  for (int rank = 0; rank < ranks; ++rank) {
    const pid_t child = ::fork();
    if (child > 0) children.push_back(child);
    if (child != 0) continue;
    ::alarm(kLifeSeconds);
    // The script kills this program at a deadline; its ranks shall not live on.
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    const int status = run_rank(rank, ranks, sizes, exchange);
    // _exit, since the parent's objects (the pipes' owner, for example) are not ours to destroy. It
    // does not flush.
    std::fflush(stdout);
    ::_exit(status);
  }
  int failed = std::ssize(children) == ranks ? 0 : 1;
  for (const pid_t child : children) {
    int status = 0;
    ::waitpid(child, &status, 0);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) failed = 1;
  }
  return failed;
}

}  // namespace

int main(int argc, char** argv) {
  int ranks = 0;
  std::vector<Size> sizes(argc > 2 ? static_cast<std::size_t>(argc - 2) : 0);
  bool understood = argc > 2 && parse(argv[1], ranks) && ranks >= 1 && ranks <= 64;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    understood = understood && parse_size(argv[i + 2], sizes[i]);
  }
  if (!understood) {
    fmt::print(stderr, "usage: bench-allreduce RANKS BYTES:REPETITIONS…\n");
    return 2;
  }
  return run_ranks(ranks, sizes);
}
