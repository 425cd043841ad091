// Several hosts with several ranks each, as processes of one host. Each "host" has a shared memory
// of its own, and all else goes over loopback.
#include <ddprun/process.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <csignal>
#include <cstring>
#include <numeric>
#include <random>

#include "tests/worker/collective/hierarchical/hierarchical_ranks.h"
#include "worker/collective/kernels/reduce_kernels.h"
#include "worker/collective/kernels/ring_order.h"

namespace ddprun::worker {
namespace {

std::vector<float> numbers_of(int rank, std::size_t count) {
  std::mt19937 random(static_cast<unsigned>(rank + 1));
  std::uniform_real_distribution<float> any(-1000, 1000);
  std::vector<float> numbers(count);
  for (float& number : numbers) number = any(random);
  return numbers;
}

// Reduces in the order of ring_order.h.
std::vector<float> ring(std::vector<std::vector<float>> all, Reduction reduction) {
  const std::size_t world = all.size();
  if (world == 1) return all[0];
  const std::size_t bytes = all[0].size() * sizeof(float);
  for (std::size_t owner = 0; owner < world; ++owner) {
    const Chunk chunk = ring_chunk(bytes, sizeof(float), world, owner);
    std::vector<std::byte*> buffers;
    for (std::size_t k = 0; k < world; ++k)
      buffers.push_back(reinterpret_cast<std::byte*>(all[(owner + k) % world].data()) +
                        chunk.begin);
    reduce_to_all(buffers, (chunk.end - chunk.begin) / sizeof(float), Dtype::kFloat32, reduction);
  }
  return all[0];
}

// Returns the sum in the order of hierarchical_collective.h: the ranks of a host first, then chunk
// by chunk the hosts.
std::vector<float> wanted_sum(Shape shape, std::size_t count, Reduction reduction) {
  const auto local_ranks = static_cast<std::size_t>(shape.local_ranks);
  std::vector<std::vector<float>> hosts;
  for (int host = 0; host < shape.hosts; ++host) {
    std::vector<std::vector<float>> ranks;
    for (int local = 0; local < shape.local_ranks; ++local)
      ranks.push_back(numbers_of(host * shape.local_ranks + local, count));
    hosts.push_back(ring(std::move(ranks), reduction));
  }
  std::vector<float> sum(count);
  for (std::size_t local = 0; local < local_ranks; ++local) {
    const Chunk chunk = ring_chunk(count * sizeof(float), sizeof(float), local_ranks, local);
    const auto begin = static_cast<std::ptrdiff_t>(chunk.begin / sizeof(float));
    const auto end = static_cast<std::ptrdiff_t>(chunk.end / sizeof(float));
    std::vector<std::vector<float>> parts;
    for (const auto& host : hosts) parts.emplace_back(host.begin() + begin, host.begin() + end);
    std::ranges::copy(ring(std::move(parts), reduction), sum.begin() + begin);
  }
  return sum;
}

class Hierarchical : public ::testing::TestWithParam<Shape> {};

TEST_P(Hierarchical, AddsOnTheHostFirst) {
  Exchanges exchanges(GetParam());
  run_ranks(hierarchical_ranks(GetParam(), exchanges), [](Collective& ranks) {
    EXPECT_EQ(ranks.name(), "hierarchical");
    for (const Reduction reduction : {Reduction::kSum, Reduction::kMax, Reduction::kMin}) {
      for (const std::size_t count : {1, 3, 4099, 100'003}) {
        const auto memory = ranks.allocate(count * sizeof(float));
        const auto mine = numbers_of(ranks.rank(), count);
        std::memcpy(memory.get(), mine.data(), count * sizeof(float));
        ranks.wait(ranks.launch({memory.get(), count, Dtype::kFloat32}, reduction));
        const auto wanted = wanted_sum(GetParam(), count, reduction);
        ASSERT_EQ(std::memcmp(memory.get(), wanted.data(), count * sizeof(float)), 0)
            << count << " elements, reduction " << static_cast<int>(reduction);
      }
    }
  });
}

TEST_P(Hierarchical, AveragesOverAllRanks) {
  Exchanges exchanges(GetParam());
  run_ranks(hierarchical_ranks(GetParam(), exchanges), [](Collective& ranks) {
    const auto memory = ranks.allocate(40);
    auto* numbers = reinterpret_cast<float*>(memory.get());
    std::fill_n(numbers, 10, static_cast<float>(2 * ranks.rank()));
    ranks.wait(ranks.launch({memory.get(), 10, Dtype::kFloat32}, Reduction::kAverage));
    for (int i = 0; i < 10; ++i)
      EXPECT_FLOAT_EQ(numbers[i], static_cast<float>(ranks.world_size() - 1));
  });
}

// 16-bit floats are divided before they are rounded: their sum would be infinite.
TEST_P(Hierarchical, AveragesOfHalvesDoNotOverflow) {
  Exchanges exchanges(GetParam());
  run_ranks(hierarchical_ranks(GetParam(), exchanges), [](Collective& ranks) {
    constexpr std::uint16_t kThirtyThousand = 0x7753;  // 30,000
    const auto memory = ranks.allocate(200);
    auto* numbers = reinterpret_cast<std::uint16_t*>(memory.get());
    std::fill_n(numbers, 100, kThirtyThousand);
    ranks.wait(ranks.launch({memory.get(), 100, Dtype::kFloat16}, Reduction::kAverage));
    EXPECT_EQ(std::count(numbers, numbers + 100, kThirtyThousand), 100);
  });
}

// The memory of a sum lives as long as the sum.
TEST_P(Hierarchical, HoldsTheMemoryOfASumUnderWay) {
  Exchanges exchanges(GetParam());
  run_ranks(hierarchical_ranks(GetParam(), exchanges), [](Collective& ranks) {
    for (int pass = 0; pass < 5; ++pass) {
      auto memory = ranks.allocate(400'000);
      const Ticket ticket = ranks.launch_sum({memory.get(), 100'000, Dtype::kFloat32});
      memory.reset();
      if (pass % 2 == 0) ranks.progress();
      ranks.wait(ticket);
    }
    ranks.barrier();
    EXPECT_NE(ranks.flight_record().find("hierarchical:all_reduce"), std::string::npos);
  });
}

// Many sums under way, waited for one by one and all at once, with progress() at any time.
TEST_P(Hierarchical, ManySumsAreUnderWay) {
  Exchanges exchanges(GetParam());
  run_ranks(hierarchical_ranks(GetParam(), exchanges), [](Collective& ranks) {
    std::mt19937 random(static_cast<unsigned>(ranks.rank()));
    const auto memory = ranks.allocate(std::size_t{12} << 20);
    auto* numbers = reinterpret_cast<float*>(memory.get());
    const auto world = static_cast<float>(ranks.world_size());
    for (int pass = 0; pass < 20; ++pass) {
      std::fill_n(numbers, 300'000, 1.0F);
      std::vector<Ticket> tickets;
      for (int bucket = 0; bucket < 6; ++bucket) {
        tickets.push_back(ranks.launch_sum({numbers + bucket * 50'000, 50'000, Dtype::kFloat32}));
        for (unsigned i = 0; i < random() % 4; ++i) ranks.progress();
      }
      if (pass % 2 == 0) ranks.wait(tickets[1]);
      if (pass % 3 == 0)
        for (const Ticket ticket : tickets) ranks.wait(ticket);
      ranks.wait(tickets.back());
      ASSERT_EQ(std::count(numbers, numbers + 300'000, world), 300'000) << "pass " << pass;
    }
  });
}

TEST_P(Hierarchical, OtherOperationsReachAllRanks) {
  Exchanges exchanges(GetParam());
  run_ranks(hierarchical_ranks(GetParam(), exchanges), [](Collective& ranks) {
    const int world = ranks.world_size();
    for (int root = 0; root < world; ++root) {
      std::vector<int> numbers(200'000, ranks.rank());
      ranks.broadcast({numbers.data(), numbers.size(), Dtype::kInt32}, root);
      EXPECT_EQ(numbers, std::vector<int>(200'000, root));
    }
    const std::vector<std::byte> mine(static_cast<std::size_t>(ranks.rank()));
    EXPECT_EQ(ranks.all_gather_bytes(mine).back().size(), static_cast<std::size_t>(world - 1));
    const auto group = ranks.split(ranks.rank() % 2, 0);
    EXPECT_EQ(group->world_size(), (world + 1 - ranks.rank() % 2) / 2);
    group->barrier();
    ranks.monitored_barrier(std::chrono::seconds(20));
    EXPECT_NE(message_of([&] { ranks.reset(); }), "");
  });
}

TEST_P(Hierarchical, SendsToRanksOfItsHostAndOfOthers) {
  Exchanges exchanges(GetParam());
  run_ranks(hierarchical_ranks(GetParam(), exchanges), [](Collective& ranks) {
    const int world = ranks.world_size();
    for (int from = 0; from < world; ++from) {
      const int to = (from + 1) % world;
      std::vector<int> numbers(70'000, from);
      const Flat flat{numbers.data(), numbers.size(), Dtype::kInt32};
      if (ranks.rank() == from) ranks.send(flat, to);
      if (ranks.rank() != to) continue;
      std::ranges::fill(numbers, -1);
      ranks.receive(flat, from);
      EXPECT_EQ(numbers, std::vector<int>(70'000, from));
    }
    EXPECT_NE(message_of([&] { ranks.send({nullptr, 0, Dtype::kInt32}, world); }), "");
  });
}

// Each host's sum is rounded to bfloat16, and then the sum of those.
TEST_P(Hierarchical, SendsBFloat16BetweenHosts) {
  Exchanges exchanges(GetParam());
  exchanges.wire = Wire::kBFloat16;
  run_ranks(hierarchical_ranks(GetParam(), exchanges), [](Collective& ranks) {
    constexpr std::size_t kCount = 300'007;
    const auto memory = ranks.allocate(kCount * sizeof(float));
    auto* numbers = reinterpret_cast<float*>(memory.get());
    // Sums of so small integers are exact in bfloat16.
    for (std::size_t i = 0; i < kCount; ++i)
      numbers[i] = static_cast<float>(i % 7) * static_cast<float>(1 + ranks.rank() % 2);
    ranks.wait(ranks.launch_sum({memory.get(), kCount, Dtype::kFloat32}));
    float factor = 0;
    for (int rank = 0; rank < ranks.world_size(); ++rank)
      factor += static_cast<float>(1 + rank % 2);
    for (std::size_t i = 0; i < kCount; ++i)
      ASSERT_EQ(numbers[i], static_cast<float>(i % 7) * factor) << i;
    // 1 + 2^-10 is no bfloat16.
    numbers[0] = 1.0009765625F;
    ranks.wait(ranks.launch_sum({memory.get(), 1, Dtype::kFloat32}));
    EXPECT_EQ(numbers[0], static_cast<float>(ranks.world_size()));
  });
}

TEST_P(Hierarchical, WideSumsOfHalvesAreAddedInFloat) {
  Exchanges exchanges(GetParam());
  run_ranks(hierarchical_ranks(GetParam(), exchanges), [](Collective& ranks) {
    constexpr std::uint16_t kOne = 0x3c00;
    const auto memory = ranks.allocate(2000);
    auto* numbers = reinterpret_cast<std::uint16_t*>(memory.get());
    std::fill_n(numbers, 1000, kOne);
    ranks.wait(ranks.launch({memory.get(), 1000, Dtype::kFloat16}, Reduction::kWideSum));
    const std::uint16_t wanted = ranks.world_size() == 4 ? 0x4400 : 0x4600;  // 4, or 6
    EXPECT_EQ(std::count(numbers, numbers + 1000, wanted), 1000);
  });
}

// More than may be under way.
TEST(HierarchicalLimits, ALaunchWaitsForTheOldestSum) {
  Exchanges exchanges({2, 2});
  run_ranks(hierarchical_ranks({2, 2}, exchanges), [](Collective& ranks) {
    constexpr std::size_t kSums = Collective::kLaunchedMax + 50;
    const auto memory = ranks.allocate(kSums * 64);
    auto* numbers = reinterpret_cast<float*>(memory.get());
    std::fill_n(numbers, kSums * 16, 1.0F);
    Ticket last = 0;
    for (std::size_t i = 0; i < kSums; ++i)
      last = ranks.launch_sum({numbers + i * 16, 16, Dtype::kFloat32});
    ranks.wait(last);
    EXPECT_EQ(std::count(numbers, numbers + kSums * 16, 4.0F), std::ptrdiff_t{kSums * 16});
  });
}

INSTANTIATE_TEST_SUITE_P(Shapes, Hierarchical,
                         ::testing::Values(Shape{2, 2}, Shape{3, 2}, Shape{2, 3}),
                         [](const auto& shape) {
                           return std::to_string(shape.param.hosts) + "HostsOf" +
                                  std::to_string(shape.param.local_ranks);
                         });

// One desync report at once, with a limit of 600 s.
void expect_desync_report(const std::function<void(Collective&, const Flat&)>& body) {
  Exchanges exchanges({2, 2});
  auto options = hierarchical_ranks({2, 2}, exchanges);
  options.timeout = std::chrono::seconds(600);
  run_ranks(options, [&body](Collective& ranks) {
    const auto memory = ranks.allocate(4000);
    const auto begin = std::chrono::steady_clock::now();
    const std::string message = message_of([&] {
      body(ranks, {memory.get(), 1000, Dtype::kFloat32});
    });
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(5));
    EXPECT_NE(message, "") << "rank " << ranks.rank();
    // Those that hear of it from others are told so.
    const bool told = message.find("different things") != std::string::npos ||
                      message.find("has ended") != std::string::npos ||
                      message.find("has left") != std::string::npos;
    EXPECT_TRUE(told) << message;
    if (ranks.rank() == 0) {
      EXPECT_NE(message.find("barrier"), std::string::npos) << message;
      EXPECT_NE(message.find("sum"), std::string::npos) << message;
    }
  });
}

TEST(HierarchicalFailures, ABarrierMeetsASumOfItsHost) {
  expect_desync_report([](Collective& ranks, const Flat& flat) {
    if (ranks.rank() == 0) return ranks.barrier();
    ranks.wait(ranks.launch_sum(flat));
  });
}

TEST(HierarchicalFailures, ABarrierMeetsASumOfAnotherHost) {
  expect_desync_report([](Collective& ranks, const Flat& flat) {
    if (ranks.rank() < 2) return ranks.barrier();
    ranks.wait(ranks.launch_sum(flat));
  });
}

TEST(HierarchicalFailures, OneStepMoreOnOneRank) {
  expect_desync_report([](Collective& ranks, const Flat& flat) {
    ranks.wait(ranks.launch_sum(flat));
    if (ranks.rank() == 0) ranks.wait(ranks.launch_sum(flat));
    ranks.barrier();
  });
}

// The other ranks of its host notice it, and then the other host.
TEST(HierarchicalFailures, ARankIsKilled) {
  Exchanges exchanges({2, 2});
  auto options = hierarchical_ranks({2, 2}, exchanges);
  options.timeout = std::chrono::seconds(600);
  const auto statuses = run_ranks_to_end(options, [](Collective& ranks) {
    const auto memory = ranks.allocate(std::size_t{8} << 20);
    const Flat all{memory.get(), std::size_t{2} << 20, Dtype::kFloat32};
    ranks.wait(ranks.launch_sum(all));
    if (ranks.rank() == 1) ::raise(SIGKILL);
    EXPECT_NE(message_of([&] { ranks.wait(ranks.launch_sum(all)); }), "");
  });
  EXPECT_TRUE(WIFSIGNALED(statuses[1]));
  for (const std::size_t rank : {0U, 2U, 3U}) EXPECT_EQ(statuses[rank], 0) << rank;
}

}  // namespace
}  // namespace ddprun::worker
