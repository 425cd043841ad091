// Ranks that are threads of one process, over shared memory and over TCP. So ThreadSanitizer sees
// both ends of all that ranks share, and finds races between them. Without it this is one more test
// of sums.
#include <gtest/gtest.h>
#include <poll.h>

#include <cstdint>
#include <cstring>
#include <exception>
#include <functional>
#include <random>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "tests/worker/collective/tcp/tcp_ranks.h"
#include "worker/collective/shm/shm_peers.h"

namespace ddprun::worker {
namespace {

constexpr int kRounds = 150;
constexpr std::size_t kLargest = 100'000;  // elements

// Moments of unlike length between the operations of a rank.
void dawdle(std::mt19937& random) {
  for (auto turns = random() % 4; turns-- > 0;) std::this_thread::yield();
  volatile unsigned spent = 0;
  for (auto turns = random() % 3000; turns-- > 0;) spent = spent + 1;
}

// Does the same operations as the other ranks: `ours` is equal on all of them, `mine` is not.
class Rank {
 public:
  explicit Rank(Collective& ranks)
      : ranks_(ranks), mine_(static_cast<unsigned>(ranks.rank()) + 100U) {}

  void run() {
    const auto memory = ranks_.allocate(kLargest * sizeof(std::int32_t));
    auto* numbers = reinterpret_cast<std::int32_t*>(memory.get());
    for (int round = 0; round < kRounds; ++round) {
      dawdle(mine_);
      const std::size_t count = 1 + ours_() % (round % 10 == 0 ? kLargest : 500);
      const std::int32_t base = round;
      switch (ours_() % 4) {
        case 0:
          sum({numbers, count}, base);
          break;
        case 1:
          gather(count % 700, base);
          break;
        case 2:
          broadcast({numbers, count}, base);
          break;
        default:
          ranks_.barrier();
      }
    }
  }

 private:
  void sum(std::span<std::int32_t> numbers, std::int32_t base) {
    for (auto& number : numbers) number = base + ranks_.rank();
    const Ticket ticket = ranks_.launch_sum({numbers.data(), numbers.size(), Dtype::kInt32});
    dawdle(mine_);
    ranks_.progress();
    ranks_.wait(ticket);
    const int world = ranks_.world_size();
    const std::int32_t expected = base * world + world * (world - 1) / 2;
    for (const auto number : numbers) ASSERT_EQ(number, expected);
  }

  void gather(std::size_t bytes, std::int32_t base) {
    const auto fill_of = [base](int rank) { return static_cast<std::byte>(base + rank); };
    const std::vector<std::byte> mine(bytes + static_cast<std::size_t>(ranks_.rank()),
                                      fill_of(ranks_.rank()));
    const auto all = ranks_.all_gather_bytes(mine);
    for (int rank = 0; rank < ranks_.world_size(); ++rank) {
      const auto& theirs = all.at(static_cast<std::size_t>(rank));
      ASSERT_EQ(theirs,
                std::vector<std::byte>(bytes + static_cast<std::size_t>(rank), fill_of(rank)));
    }
  }

  void broadcast(std::span<std::int32_t> numbers, std::int32_t base) {
    const int root = base % ranks_.world_size();
    for (auto& number : numbers) number = ranks_.rank() == root ? base : -1;
    ranks_.broadcast({numbers.data(), numbers.size(), Dtype::kInt32}, root);
    for (const auto number : numbers) ASSERT_EQ(number, base);
  }

  Collective& ranks_;
  std::mt19937 ours_{1};
  std::mt19937 mine_;
};

void run_threads(const RanksOptions& options, const RankBody& body) {
  PipeExchange exchange(options.ranks);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < options.ranks; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        auto collective = options.join(rank, options, exchange);
        ASSERT_TRUE(collective) << collective.error().message();
        body(**collective);
      } catch (const std::exception& error) {
        ADD_FAILURE() << "rank " << rank << ": " << error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

class ThreadRanks : public ::testing::TestWithParam<int> {};

TEST_P(ThreadRanks, AgreeOverSharedMemory) {
  run_threads({.ranks = GetParam()}, [](Collective& collective) { Rank(collective).run(); });
}

TEST_P(ThreadRanks, AgreeOverTcp) {
  run_threads(tcp_ranks(GetParam()), [](Collective& collective) { Rank(collective).run(); });
}

INSTANTIATE_TEST_SUITE_P(Ranks, ThreadRanks, ::testing::Values(2, 3));

// Each rank's pid is this process's. A rank that waits for long looks at it, and sees it alive.
TEST(ThreadRanks, DoNotTakeTheirOwnProcessForDead) {
  run_threads({.ranks = 2}, [](Collective& collective) {
    collective.barrier();
    if (collective.rank() == 0) ::poll(nullptr, 0, 25 * static_cast<int>(kWaitSlice.count()));
    collective.barrier();
  });
}

// An abort of one rank reaches the other while it waits, whole.
TEST(ThreadRanks, EndWithOneDesyncReport) {
  for (const JoinRank& join : {JoinRank(join_by_shm), JoinRank(join_by_tcp)}) {
    run_threads({.ranks = 2, .join = join}, [](Collective& collective) {
      int number = 0;
      const auto said = message_of([&] {
        if (collective.rank() == 0)
          collective.barrier();
        else
          collective.broadcast({&number, 1, Dtype::kInt32}, 0);
      });
      EXPECT_NE(said.find("barrier (operation "), std::string::npos) << said;
      EXPECT_NE(said.find("do different things"), std::string::npos) << said;
    });
  }
}

}  // namespace
}  // namespace ddprun::worker
