// collectives_worker TRANSPORT RANKS CALLS SEED: forks the ranks. They do CALLS random operations
// of random size with random delays, and compare each result with the right one. The last line says
// how many calls, elements and seconds; exit code 1 where a rank failed, which says why. For
// engine_collectives.
#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <memory>
#include <random>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "worker/collective/core/split.h"
#include "worker/collective/shm/shm_collective.h"
#include "worker/collective/tcp/tcp_collective.h"
#include "worker/startup/pipe_exchange.h"

namespace {

using namespace ddprun;
using namespace ddprun::worker;

constexpr std::size_t kLargest = 16'384;  // elements
constexpr std::chrono::seconds kTimeout{120};

struct Plan {
  std::string transport;
  int ranks = 2;
  long calls = 0;
  unsigned seed = 0;
};

// Returns an element that a rank brings to a call.
std::int32_t brought(long call, int rank, std::size_t i) {
  const auto mixed = static_cast<std::uint32_t>(call) * 2'654'435'761U +
                     static_cast<std::uint32_t>(rank) * 40'503U +
                     static_cast<std::uint32_t>(i) * 97U;
  return static_cast<std::int32_t>(mixed >> 12U) - (1 << 19);
}

void expect(bool right, std::string_view operation, long call) {
  if (!right)
    throw std::runtime_error(fmt::format("call {}: wrong result of a {}", call, operation));
}

// The same sequence of calls on all ranks, with delays that differ.
class Rank {
 public:
  Rank(Collective& ranks, const Plan& plan)
      : ranks_(ranks),
        plan_(plan),
        ours_(plan.seed),
        mine_(plan.seed + 1 + static_cast<unsigned>(ranks.rank())),
        memory_(ranks.allocate(2 * kLargest * sizeof(std::int32_t))),
        numbers_(reinterpret_cast<std::int32_t*>(memory_.get()), 2 * kLargest) {}

  // Elements in all.
  std::uint64_t run() {
    for (long call = 0; call < plan_.calls; ++call) {
      const auto count = static_cast<std::size_t>(
          std::exp(std::uniform_real_distribution(0.0, std::log(double{kLargest}))(ours_)));
      elements_ += count;
      delay();
      one(call, count, ours_() % 16);
    }
    return elements_;
  }

 private:
  // Mostly none; now and then longer than the others spin.
  void delay() {
    if (mine_() % 64 != 0) return;
    const auto end = std::chrono::steady_clock::now() + std::chrono::microseconds(mine_() % 200);
    while (std::chrono::steady_clock::now() < end) {
    }
  }

  void one(long call, std::size_t count, unsigned choice) {
    if (choice < 8) return reduce(call, numbers_.first(count), choice < 6);
    if (choice < 10) return reduce_two(call, count);
    if (choice < 12) return gather(call, count);
    if (choice < 14) return broadcast(call, numbers_.first(count));
    if (choice == 14) return pass_on(call, numbers_.first(count));
    ranks_.barrier();
  }

  void fill(long call, std::span<std::int32_t> numbers) const {
    for (std::size_t i = 0; i < numbers.size(); ++i) numbers[i] = brought(call, ranks_.rank(), i);
  }
  Ticket launch(std::span<std::int32_t> numbers, Reduction reduction) {
    return ranks_.launch({numbers.data(), numbers.size(), Dtype::kInt32}, reduction);
  }
  void check(long call, std::span<const std::int32_t> numbers, bool sum) const {
    for (std::size_t i = 0; i < numbers.size(); ++i) {
      std::int32_t right = brought(call, 0, i);
      for (int rank = 1; rank < plan_.ranks; ++rank) {
        const std::int32_t theirs = brought(call, rank, i);
        right = sum ? right + theirs : std::max(right, theirs);
      }
      expect(numbers[i] == right, sum ? "sum" : "maximum", call);
    }
  }

  void reduce(long call, std::span<std::int32_t> numbers, bool sum) {
    fill(call, numbers);
    const Ticket ticket = launch(numbers, sum ? Reduction::kSum : Reduction::kMax);
    delay();
    ranks_.wait(ticket);
    check(call, numbers, sum);
  }

  void reduce_two(long call, std::size_t count) {
    const auto first = numbers_.first(count);
    const auto second = numbers_.subspan(kLargest, count);
    fill(call, first);
    const Ticket one = launch(first, Reduction::kSum);
    fill(call + 1, second);
    const Ticket two = launch(second, Reduction::kSum);
    ranks_.progress();
    ranks_.wait(two);
    ranks_.wait(one);
    check(call, first, true);
    check(call + 1, second, true);
  }

  void gather(long call, std::size_t count) {
    std::vector<std::int32_t> mine(count + static_cast<std::size_t>(ranks_.rank()));
    fill(call, mine);
    const auto all = ranks_.all_gather_bytes(std::as_bytes(std::span(mine)));
    for (int rank = 0; rank < plan_.ranks; ++rank) {
      const auto& theirs = all.at(static_cast<std::size_t>(rank));
      const std::size_t length = count + static_cast<std::size_t>(rank);
      expect(theirs.size() == length * sizeof(std::int32_t), "gather", call);
      const auto* numbers = reinterpret_cast<const std::int32_t*>(theirs.data());
      for (std::size_t i = 0; i < length; ++i)
        expect(numbers[i] == brought(call, rank, i), "gather", call);
    }
  }

  void broadcast(long call, std::span<std::int32_t> numbers) {
    const int root = static_cast<int>(call % plan_.ranks);
    fill(call, numbers);
    ranks_.broadcast({numbers.data(), numbers.size(), Dtype::kInt32}, root);
    for (std::size_t i = 0; i < numbers.size(); ++i)
      expect(numbers[i] == brought(call, root, i), "broadcast", call);
  }

  // From one rank to the next one.
  void pass_on(long call, std::span<std::int32_t> numbers) {
    const int from = static_cast<int>(call % plan_.ranks);
    const int to = (from + 1) % plan_.ranks;
    const Flat flat{numbers.data(), numbers.size(), Dtype::kInt32};
    fill(call, numbers);
    if (ranks_.rank() == from) ranks_.send(flat, to);
    if (ranks_.rank() != to) return;
    ranks_.receive(flat, from);
    for (std::size_t i = 0; i < numbers.size(); ++i)
      expect(numbers[i] == brought(call, from, i), "chunk", call);
  }

  Collective& ranks_;
  const Plan& plan_;
  std::mt19937 ours_;
  std::mt19937 mine_;
  std::shared_ptr<std::byte> memory_;
  std::span<std::int32_t> numbers_;
  std::uint64_t elements_ = 0;
};

ddprun::Result<std::unique_ptr<Collective>> join(const Plan& plan, int rank, Exchange& exchange) {
  if (plan.transport == "shm")
    return as_collective(
        join_shm({.rank = rank, .ranks = plan.ranks, .timeout = kTimeout}, exchange));
  return as_collective(join_tcp({.rank = rank,
                                 .ranks = plan.ranks,
                                 .address = "127.0.0.1",
                                 .host = fmt::format("host{}", rank),
                                 .timeout = kTimeout},
                                exchange));
}

int rank_main(const Plan& plan, int rank, Exchange& exchange) {
  try {
    auto collective = join(plan, rank, exchange);
    if (!collective) throw std::runtime_error(collective.error().message());
    const auto since = std::chrono::steady_clock::now();
    const auto elements = Rank(**collective, plan).run();
    (*collective)->barrier();
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - since;
    if (rank == 0) fmt::print("{} {} {:.2f}\n", plan.calls, elements, took.count());
    return 0;
  } catch (const std::exception& error) {
    fmt::print("rank {}: {}\n", rank, error.what());
    return 1;
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) {
    fmt::print(stderr, "usage: {} shm|tcp RANKS CALLS SEED\n", argv[0]);
    return 2;
  }
  const Plan plan{.transport = argv[1],
                  .ranks = std::atoi(argv[2]),
                  .calls = std::atol(argv[3]),
                  .seed = static_cast<unsigned>(std::strtoul(argv[4], nullptr, 10))};
  PipeExchange exchange(plan.ranks);
  std::vector<pid_t> children;
  for (int rank = 0; rank < plan.ranks; ++rank) {
    const pid_t child = ::fork();
    if (child == 0) {
      const int code = rank_main(plan, rank, exchange);
      std::fflush(nullptr);
      ::_exit(code);
    }
    children.push_back(child);
  }
  bool well = true;
  for (const pid_t child : children) {
    int status = 0;
    ::waitpid(child, &status, 0);
    well = well && status == 0;
  }
  return well ? 0 : 1;
}
