#include "worker/collective/tcp/tcp_collective.h"

#include <ddprun/metrics.h>
#include <ddprun/process.h>
#include <gtest/gtest.h>

#include <array>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <numeric>
#include <string>

#include "tests/worker/collective/tcp/tcp_ranks.h"
#include "worker/collective/kernels/bfloat16_kernels.h"
#include "worker/collective/kernels/reduce_kernels.h"
#include "worker/collective/kernels/ring_order.h"

namespace ddprun::worker {
namespace {

// Values that each rank can make for every other one. Their sums depend on the order; small
// integers for types that would overflow.
void fill(std::byte* data, std::size_t count, Dtype dtype, std::size_t rank) {
  for (std::size_t i = 0; i < count; ++i) {
    const auto small = static_cast<std::uint8_t>((i * 31 + rank * 7) % 23);
    const float real = 0.1F * static_cast<float>(small) + static_cast<float>(rank);
    const std::array one{real};
    std::array<std::uint16_t, 1> rounded{};
    to_bfloat16(one, rounded);
    switch (dtype) {
      case Dtype::kFloat32:
        std::memcpy(data + i * 4, &real, 4);
        break;
      case Dtype::kFloat64: {
        const double twice = static_cast<double>(real) / 3;
        std::memcpy(data + i * 8, &twice, 8);
        break;
      }
      case Dtype::kBFloat16:
        std::memcpy(data + i * 2, rounded.data(), 2);
        break;
      case Dtype::kFloat16: {  // 1.small
        const auto half = static_cast<std::uint16_t>(0x3c00U + small);
        std::memcpy(data + i * 2, &half, 2);
        break;
      }
      case Dtype::kInt32:
      case Dtype::kInt64:
        std::memset(data + i * size_of(dtype), 0, size_of(dtype));
        data[i * size_of(dtype)] = static_cast<std::byte>(small);
        break;
      case Dtype::kInt8:
      case Dtype::kUInt8:
        data[i] = static_cast<std::byte>(small);
        break;
    }
  }
}

// Returns the sum as shared memory would make it: the same kernels, chunk by chunk.
std::vector<std::byte> reduced(std::size_t world, std::size_t count, Dtype dtype,
                               Reduction reduction) {
  const std::size_t bytes = count * size_of(dtype);
  std::vector<std::vector<std::byte>> all(world, std::vector<std::byte>(bytes));
  for (std::size_t rank = 0; rank < world; ++rank) fill(all[rank].data(), count, dtype, rank);
  for (std::size_t owner = 0; owner < world; ++owner) {
    const Chunk chunk = ring_chunk(bytes, size_of(dtype), world, owner);
    std::vector<std::byte*> buffers;
    for (std::size_t k = 0; k < world; ++k)
      buffers.push_back(all[(owner + k) % world].data() + chunk.begin);
    reduce_to_all(buffers, (chunk.end - chunk.begin) / size_of(dtype), dtype, reduction);
  }
  return all[0];
}

bool holds(const std::byte* data, const std::vector<std::byte>& wanted) {
  return std::memcmp(data, wanted.data(), wanted.size()) == 0;
}

void expect_reductions(Collective& ranks) {
  constexpr std::array kTypes{Dtype::kFloat32, Dtype::kFloat64, Dtype::kFloat16, Dtype::kBFloat16,
                              Dtype::kInt32,   Dtype::kInt64,   Dtype::kInt8,    Dtype::kUInt8};
  const auto world = static_cast<std::size_t>(ranks.world_size());
  const auto rank = static_cast<std::size_t>(ranks.rank());
  for (const Dtype dtype : kTypes) {
    const bool is_float = dtype <= Dtype::kBFloat16;
    for (const Reduction reduction : {Reduction::kSum, Reduction::kWideSum, Reduction::kAverage,
                                      Reduction::kMin, Reduction::kMax}) {
      if (reduction == Reduction::kAverage && !is_float) continue;
      for (const std::size_t count : {1, 4099, 70'001}) {
        const auto memory = ranks.allocate(count * size_of(dtype));
        fill(memory.get(), count, dtype, rank);
        ranks.wait(ranks.launch({memory.get(), count, dtype}, reduction));
        ASSERT_TRUE(holds(memory.get(), reduced(world, count, dtype, reduction)))
            << name_of(dtype) << ", " << count << " elements, reduction "
            << static_cast<int>(reduction);
      }
    }
  }
}

class TcpWorlds : public ::testing::TestWithParam<int> {};

TEST_P(TcpWorlds, ReduceAsSharedMemoryDoes) { run_ranks(tcp_ranks(GetParam()), expect_reductions); }

// Sums wait in line, their memory is dropped, and one wait completes all.
TEST_P(TcpWorlds, ManySumsAreUnderWay) {
  run_ranks(tcp_ranks(GetParam()), [](Collective& ranks) {
    constexpr std::size_t kCount = 50'000;
    const auto world = static_cast<std::size_t>(ranks.world_size());
    const auto kept = ranks.allocate(kCount * 4);
    fill(kept.get(), kCount, Dtype::kFloat32, static_cast<std::size_t>(ranks.rank()));
    Ticket last = ranks.launch_sum({kept.get(), kCount, Dtype::kFloat32});
    for (int i = 0; i < 30; ++i) {
      const auto dropped = ranks.allocate(kCount * 4);
      last = ranks.launch_sum({dropped.get(), kCount, Dtype::kFloat32});
      ranks.progress();
    }
    ranks.wait(last);
    EXPECT_TRUE(holds(kept.get(), reduced(world, kCount, Dtype::kFloat32, Reduction::kSum)));
  });
}

TEST_P(TcpWorlds, OperationsFollowEachOther) {
  run_ranks(tcp_ranks(GetParam()), [](Collective& ranks) {
    const int world = ranks.world_size();
    std::vector<std::byte> mine(static_cast<std::size_t>(ranks.rank()) * 1000, std::byte{7});
    for (int root = 0; root < world; ++root) {
      const auto parts = ranks.all_gather_bytes(mine);
      for (int other = 0; other < world; ++other)
        EXPECT_EQ(parts[static_cast<std::size_t>(other)].size(),
                  static_cast<std::size_t>(other) * 1000);
      std::vector<int> numbers(300'000, ranks.rank());
      ranks.broadcast({numbers.data(), numbers.size(), Dtype::kInt32}, root);
      EXPECT_EQ(numbers, std::vector<int>(300'000, root));
      ranks.barrier();
      ranks.monitored_barrier(std::chrono::seconds(20));
    }
    // Round the circle, both directions; the even ones send first.
    const int next = (ranks.rank() + 1) % world;
    const int previous = (ranks.rank() + world - 1) % world;
    std::vector<int> given(100'000, ranks.rank());
    std::vector<int> taken(100'000, -1);
    const Flat out{given.data(), given.size(), Dtype::kInt32};
    const Flat in{taken.data(), taken.size(), Dtype::kInt32};
    if (ranks.rank() % 2 == 0) ranks.send(out, next);
    ranks.receive(in, previous);
    if (ranks.rank() % 2 != 0) ranks.send(out, next);
    EXPECT_EQ(taken, std::vector<int>(100'000, previous));
    std::array<double, 2> sums{1.0, static_cast<double>(ranks.rank())};
    ranks.sum(sums);
    EXPECT_EQ(sums[0], world);
    EXPECT_EQ(ranks.name(), "tcp");
    EXPECT_EQ(nlohmann::json::parse(ranks.flight_record()).at("entries").size(),
              static_cast<std::size_t>(4 * world + 4));
  });
}

INSTANTIATE_TEST_SUITE_P(Worlds, TcpWorlds, ::testing::Values(2, 4, 5));

TEST(TcpCollective, SplitsIntoGroups) {
  run_ranks(tcp_ranks(5), [](Collective& ranks) {
    const bool last = ranks.rank() == 4;
    const auto group = ranks.split(last ? -1 : ranks.rank() % 2, -ranks.rank());
    if (last) {
      EXPECT_EQ(group, nullptr);
    } else {
      EXPECT_EQ(group->world_size(), 2);
      EXPECT_EQ(group->rank(), ranks.rank() < 2 ? 1 : 0);
      std::array<double, 1> sum{static_cast<double>(ranks.rank())};
      group->sum(sum);
      EXPECT_EQ(sum[0], ranks.rank() % 2 == 0 ? 2.0 : 4.0);
    }
    ranks.barrier();
  });
}

// Each rank's elements are rounded once, and so is the sum. All ranks have the same bits.
TEST(TcpCollective, SendsBFloat16WhereThatIsAskedFor) {
  auto options = tcp_ranks(3);
  options.join = [](int rank, const RanksOptions& all, Exchange& exchange) {
    TcpJob job = tcp_job(rank, all);
    job.wire = Wire::kBFloat16;
    return as_collective(join_tcp(job, exchange));
  };
  run_ranks(options, [](Collective& ranks) {
    constexpr std::size_t kCount = 100'000;
    const auto memory = ranks.allocate(kCount * 4);
    fill(memory.get(), kCount, Dtype::kFloat32, static_cast<std::size_t>(ranks.rank()));
    ranks.wait(ranks.launch_sum({memory.get(), kCount, Dtype::kFloat32}));
    const auto sums = reduced(3, kCount, Dtype::kBFloat16, Reduction::kWideSum);
    std::vector<std::uint16_t> wire(kCount);
    std::memcpy(wire.data(), sums.data(), sums.size());
    std::vector<float> wanted(kCount);
    from_bfloat16(wire, wanted);
    EXPECT_EQ(std::memcmp(memory.get(), wanted.data(), kCount * 4), 0);
    // The least stays exact: only what is added is rounded.
    fill(memory.get(), kCount, Dtype::kFloat32, static_cast<std::size_t>(ranks.rank()));
    ranks.wait(ranks.launch({memory.get(), kCount, Dtype::kFloat32}, Reduction::kMin));
    EXPECT_TRUE(holds(memory.get(), reduced(3, kCount, Dtype::kFloat32, Reduction::kMin)));
  });
}

TEST(TcpCollective, SumsOnlyItsOwnMemory) {
  run_ranks(tcp_ranks(2), [](Collective& ranks) {
    std::vector<float> other(4);
    EXPECT_EQ(message_of([&] {
                ranks.launch_sum({other.data(), 4, Dtype::kFloat32});
              }),
              "sum of memory that did not come from allocate()");
    ranks.barrier();
  });
}

TEST(TcpCollective, WritesItsFlightRecord) {
  const std::string folder = ::testing::TempDir();
  run_ranks(tcp_ranks(2), [&](Collective& ranks) {
    const std::string path = folder + "flight_record." + std::to_string(ranks.rank());
    ranks.write_flight_record(path);
    std::ifstream file(path);
    EXPECT_EQ(nlohmann::json::parse(file).at("entries").size(), 1U);
    std::remove(path.c_str());
    EXPECT_NE(
        message_of([&] { ranks.write_flight_record(folder + "none/record"); }).find("none/record"),
        std::string::npos);
  });
}

// A metric over ranks that have seen different numbers of samples.
TEST(TcpCollective, MeansAreThoseOfAllRanks) {
  run_ranks(tcp_ranks(3), [](Collective& ranks) {
    Mean loss;
    loss.add(10.0 * ranks.rank(), ranks.rank() + 1);
    EXPECT_DOUBLE_EQ(loss.over(ranks), 30.0 / 6);
  });
}

}  // namespace
}  // namespace ddprun::worker
