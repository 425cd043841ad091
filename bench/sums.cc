// The bytes that a sum of gradients sends over TCP by each way. Ways are a parameter server, a
// ring, and a mesh. The mesh is the engine's own sum: each rank sends to each other one. It forks
// the ranks. Without LibTorch. bench/sums runs it, and bench/plot draws what it prints, as CSV.
//   bench-sums bytes RANKS BYTES     bytes that each rank sends for a sum, as the kernel counts
//   bench-sums steps RANKS BYTES     who sends what when in one sum around the ring
// BYTES must be a multiple of 4 x RANKS. RANKS are 2 to 64.
#include "examples/updates/sums.h"

#include <ddprun/process.h>
#include <fmt/format.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <charconv>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "worker/collective/tcp/tcp_collective.h"
#include "worker/startup/pipe_exchange.h"

namespace ddprun::bench {
namespace {

using examples::CountedLinks;
using Clock = std::chrono::steady_clock;

constexpr int kSums = 8;  // that are counted at once: the barrier behind them has a few bytes, too
constexpr std::chrono::seconds kTimeout{60};
constexpr unsigned kLifeSeconds = 120;  // of a rank, which SIGALRM then ends

struct Options {
  bool steps = false;
  int ranks = 0;
  std::size_t bytes = 0;  // of the gradient
};

std::optional<Options> parse_command(const std::vector<std::string_view>& words) {
  const auto parse = [](std::string_view text, auto& number) {
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    return error == std::errc() && end == text.data() + text.size();
  };
  Options options;
  if (words.size() != 3 || (words[0] != "bytes" && words[0] != "steps") ||
      !parse(words[1], options.ranks) || !parse(words[2], options.bytes))
    return std::nullopt;
  options.steps = words[0] == "steps";
  if (options.ranks < 2 || options.ranks > 64 || options.bytes == 0 ||
      options.bytes % (sizeof(float) * static_cast<std::size_t>(options.ranks)) != 0)
    return std::nullopt;
  return options;
}

// The payload that this process has sent on its TCP connections, as the kernel counts it (tcp(7),
// TCP_INFO). Bytes that were sent again do not count.
std::uint64_t bytes_sent() {
  std::uint64_t sum = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    const int fd = std::stoi(entry.path().filename());
    tcp_info info{};
    socklen_t size = sizeof(info);
    if (::getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size) == 0)
      sum += info.tcpi_bytes_sent - info.tcpi_bytes_retrans;
  }
  return sum;
}

// The same numbers on all ranks at once, and equal sums: a way that adds wrongly has no bytes.
void check_sum(std::string_view way, std::span<const float> gradient, int ranks) {
  const auto expected = static_cast<float>(ranks * (ranks + 1)) / 2;
  for (const float number : gradient) {
    if (number != expected)
      throw CollectiveError(fmt::format("{}: sum {}, expected {}", way, number, expected));
  }
}

// Rows of all ranks, in their order, by rank 0.
void print_rows(Collective& ranks, const std::string& mine) {
  const auto all = ranks.all_gather_bytes(std::as_bytes(std::span(mine)));
  if (ranks.rank() != 0) return;
  for (const auto& rows : all) std::fwrite(rows.data(), 1, rows.size(), stdout);
}

template <typename Sum>
void count_bytes(Collective& ranks, std::string_view way, std::span<float> gradient,
                 const Sum& sum) {
  ranks.barrier();
  const std::uint64_t before = bytes_sent();
  for (int i = 0; i < kSums; ++i) {
    std::ranges::fill(gradient, static_cast<float>(ranks.rank() + 1));
    sum(gradient);
  }
  ranks.barrier();
  const std::uint64_t after = bytes_sent();
  check_sum(way, gradient, ranks.world_size());
  print_rows(ranks, fmt::format("{},{},{},{},{}\n", way, ranks.world_size(), gradient.size_bytes(),
                                ranks.rank(), (after - before) / kSums));
}

void count_all_ways(Collective& ranks, std::span<float> gradient) {
  if (ranks.rank() == 0) fmt::print("way,ranks,gradient_bytes,rank,sent\n");
  std::fflush(stdout);
  CountedLinks links(ranks);
  count_bytes(ranks, "parameter server", gradient,
              [&](std::span<float> all) { sum_at_server(links, all); });
  count_bytes(ranks, "ring", gradient, [&](std::span<float> all) { sum_around_ring(links, all); });
  count_bytes(ranks, "mesh", gradient,
              [&](std::span<float> all) { examples::sum_in_collective(ranks, all); });
}

// The nanoseconds of steady_clock at which the first of the ranks begins.
std::int64_t first_time(Collective& ranks) {
  std::int64_t first = Clock::now().time_since_epoch().count();
  for (const auto& bytes : ranks.all_gather_bytes(std::as_bytes(std::span(&first, 1)))) {
    std::int64_t theirs = 0;
    std::memcpy(&theirs, bytes.data(), sizeof(theirs));
    first = std::min(first, theirs);
  }
  return first;
}

// One sum warms up, and one is recorded. Times are microseconds after the first rank's begin: all
// ranks have one clock.
void record_steps(Collective& ranks, std::span<float> gradient) {
  CountedLinks links(ranks);
  std::string rows;
  Clock::time_point start;
  int step = 0;
  const auto note = [&](const examples::SentNumbers& sent) {
    const auto us = [&](Clock::time_point time) {
      return std::chrono::duration<double, std::micro>(time - start).count();
    };
    const int steps = ranks.world_size() - 1;
    const auto chunk = (sent.numbers.data() - gradient.data()) / std::ssize(sent.numbers);
    rows += fmt::format("{},{},{},{},{},{},{:.1f},{:.1f}\n", ranks.rank(), sent.to,
                        step < steps ? "scatter-reduce" : "all-gather", step % steps + 1, chunk,
                        sent.numbers.size_bytes(), us(sent.begin), us(sent.end));
    ++step;
  };
  for (const bool recorded : {false, true}) {
    std::ranges::fill(gradient, static_cast<float>(ranks.rank() + 1));
    if (recorded) links.note = note;
    start = Clock::time_point(std::chrono::nanoseconds(first_time(ranks)));
    sum_around_ring(links, gradient);
  }
  check_sum("ring", gradient, ranks.world_size());
  if (ranks.rank() == 0) fmt::print("rank,to,phase,step,chunk,bytes,begin_us,end_us\n");
  std::fflush(stdout);
  print_rows(ranks, rows);
}

int run_rank(int rank, const Options& options, worker::PipeExchange& exchange) {
  try {
    const worker::TcpJob job{.rank = rank,
                             .ranks = options.ranks,
                             .address = "127.0.0.1",
                             .host = fmt::format("rank {}", rank),
                             .timeout = kTimeout};
    const auto ranks = worker::join_tcp(job, exchange).value();
    const auto memory = ranks->allocate(options.bytes);
    const std::span gradient(reinterpret_cast<float*>(memory.get()), options.bytes / sizeof(float));
    options.steps ? record_steps(*ranks, gradient) : count_all_ways(*ranks, gradient);
    ranks->barrier();
  } catch (const std::exception& error) {
    fmt::print(stderr, "bench-sums: rank {}: {}\n", rank, error.what());
    return 1;
  }
  return 0;
}

int run_ranks(const Options& options) {
  worker::PipeExchange exchange(options.ranks);
  std::vector<pid_t> children;
  for (int rank = 0; rank < options.ranks; ++rank) {
    const pid_t child = ::fork();
    if (child > 0) children.push_back(child);
    if (child != 0) continue;
    ::alarm(kLifeSeconds);
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    const int status = run_rank(rank, options, exchange);
    std::fflush(stdout);
    ::_exit(status);  // the parent's objects are not ours to destroy
  }
  int failed = std::ssize(children) == options.ranks ? 0 : 1;
  for (const pid_t child : children) {
    int status = 0;
    ::waitpid(child, &status, 0);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) failed = 1;
  }
  return failed;
}

}  // namespace
}  // namespace ddprun::bench

int main(int argc, char** argv) {
  const auto options = ddprun::bench::parse_command({argv + 1, argv + argc});
  if (!options) {
    fmt::print(
        stderr,
        "usage: bench-sums bytes|steps RANKS BYTES, with 2 to 64 ranks, and bytes that are a "
        "multiple of 4 x ranks\n");
    return 2;
  }
  return ddprun::bench::run_ranks(*options);
}
