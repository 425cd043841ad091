// The operations that training with DDP does not need. They are other reductions, chunks from rank
// to rank, groups, and the barrier that names a late rank.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <numeric>
#include <string>
#include <string_view>
#include <vector>

#include "tests/worker/forked_ranks.h"
#include "worker/collective/kernels/sum_kernels.h"

namespace ddprun::worker {
namespace {

void expect_says(const std::string& said, std::string_view words) {
  EXPECT_NE(said.find(words), std::string::npos) << said;
}

// The result of reducing `mine` over all ranks.
template <typename T>
std::vector<T> reduced(Collective& collective, const std::vector<T>& mine, Dtype dtype,
                       Reduction reduction) {
  const auto memory = collective.allocate(mine.size() * sizeof(T));
  std::memcpy(memory.get(), mine.data(), mine.size() * sizeof(T));
  collective.wait(collective.launch({memory.get(), mine.size(), dtype}, reduction));
  const auto* data = reinterpret_cast<const T*>(memory.get());
  return {data, data + mine.size()};
}

// Rank r has r + 1, minus r, and i - r·i.
template <typename T>
void check_numbers(Collective& collective, Dtype dtype) {
  const int rank = collective.rank();
  const int ranks = collective.world_size();
  std::vector<T> mine{static_cast<T>(rank + 1), static_cast<T>(-rank)};
  for (int i = 0; i < 100; ++i) mine.push_back(static_cast<T>(i - rank * i));
  const auto least = reduced(collective, mine, dtype, Reduction::kMin);
  EXPECT_EQ(least[0], static_cast<T>(1)) << name_of(dtype);
  const auto greatest = reduced(collective, mine, dtype, Reduction::kMax);
  EXPECT_EQ(greatest[0], static_cast<T>(ranks)) << name_of(dtype);
  if (std::numeric_limits<T>::is_signed) {
    EXPECT_EQ(least[1], static_cast<T>(1 - ranks)) << name_of(dtype);
    EXPECT_EQ(greatest[1], static_cast<T>(0)) << name_of(dtype);
    EXPECT_EQ(least[2 + 30], static_cast<T>(30 - (ranks - 1) * 30)) << name_of(dtype);
  }
  const auto sum = reduced(collective, mine, dtype, Reduction::kSum);
  EXPECT_EQ(sum[0], static_cast<T>(ranks * (ranks + 1) / 2)) << name_of(dtype);
}

class ShmOperations : public ::testing::TestWithParam<int> {};

TEST_P(ShmOperations, ReduceEachType) {
  run_ranks(GetParam(), [](Collective& collective) {
    check_numbers<float>(collective, Dtype::kFloat32);
    check_numbers<double>(collective, Dtype::kFloat64);
    check_numbers<std::int32_t>(collective, Dtype::kInt32);
    check_numbers<std::int64_t>(collective, Dtype::kInt64);
    check_numbers<std::int8_t>(collective, Dtype::kInt8);
    check_numbers<std::uint8_t>(collective, Dtype::kUInt8);
  });
}

TEST_P(ShmOperations, ReduceSixteenBitFloats) {
  run_ranks(GetParam(), [](Collective& collective) {
    const auto rank = static_cast<float>(collective.rank());
    const auto last = static_cast<float>(collective.world_size() - 1);
    const std::vector<std::uint16_t> halves{round_to_half(rank), round_to_half(-rank)};
    EXPECT_EQ(widen_half(reduced(collective, halves, Dtype::kFloat16, Reduction::kMin)[1]), -last);
    EXPECT_EQ(widen_half(reduced(collective, halves, Dtype::kFloat16, Reduction::kAverage)[0]),
              last / 2);
    const std::vector<std::uint16_t> bfloats{round_to_bfloat16(rank), round_to_bfloat16(-rank)};
    EXPECT_EQ(widen_bfloat16(reduced(collective, bfloats, Dtype::kBFloat16, Reduction::kMax)[0]),
              last);
    EXPECT_EQ(
        widen_bfloat16(reduced(collective, bfloats, Dtype::kBFloat16, Reduction::kAverage)[1]),
        -last / 2);
  });
}

// The sum of them is no half any more.
TEST_P(ShmOperations, AverageLargeHalves) {
  run_ranks(GetParam(), [](Collective& collective) {
    const std::vector<std::uint16_t> large{round_to_half(40'000)};
    EXPECT_EQ(widen_half(reduced(collective, large, Dtype::kFloat16, Reduction::kAverage)[0]),
              40'000);
  });
}

TEST_P(ShmOperations, AverageAndKeepNaN) {
  run_ranks(GetParam(), [](Collective& collective) {
    const int ranks = collective.world_size();
    const double nan = std::numeric_limits<double>::quiet_NaN();
    const bool last = collective.rank() == ranks - 1;
    const std::vector<double> mine{static_cast<double>(collective.rank()), last ? nan : 1.0};
    const auto average = reduced(collective, mine, Dtype::kFloat64, Reduction::kAverage);
    EXPECT_EQ(average[0], (ranks - 1) / 2.0);
    EXPECT_TRUE(std::isnan(average[1]));
    EXPECT_TRUE(std::isnan(reduced(collective, mine, Dtype::kFloat64, Reduction::kMin)[1]));
    EXPECT_TRUE(std::isnan(reduced(collective, mine, Dtype::kFloat64, Reduction::kMax)[1]));
  });
}

std::vector<std::uint8_t> text_of(int from, int to, std::size_t bytes) {
  std::vector<std::uint8_t> text(bytes);
  std::iota(text.begin(), text.end(), static_cast<std::uint8_t>(7 * from + 31 * to));
  return text;
}

Flat flat_of(std::vector<std::uint8_t>& text) { return {text.data(), text.size(), Dtype::kUInt8}; }

// Each rank sends to all others in turn.
TEST_P(ShmOperations, SendAnyLengthToAnyRank) {
  run_ranks(GetParam(), [](Collective& collective) {
    const int ranks = collective.world_size();
    for (const std::size_t bytes : {0UL, 1UL, 65'536UL, 65'537UL, 1'000'003UL}) {
      for (int sender = 0; sender < ranks; ++sender) {
        for (int step = 1; step < ranks; ++step) {
          const int receiver = (sender + step) % ranks;
          auto text = text_of(sender, receiver, bytes);
          if (collective.rank() == sender) collective.send(flat_of(text), receiver);
          if (collective.rank() != receiver) continue;
          std::vector<std::uint8_t> got(bytes);
          collective.receive(flat_of(got), sender);
          EXPECT_EQ(got, text) << sender << " to " << receiver;
        }
      }
    }
  });
}

// A sum that was launched before and is awaited after: the rank that receives does its part of it.
TEST(ShmChunks, ComeInOrderAndBesideSums) {
  run_ranks(3, [](Collective& collective) {
    constexpr int kRounds = 200;
    const auto memory = collective.allocate(sizeof(std::int32_t));
    auto& number = *reinterpret_cast<std::int32_t*>(memory.get());
    for (int round = 0; round < kRounds; ++round) {
      number = collective.rank();
      const Ticket sum = collective.launch_sum({memory.get(), 1, Dtype::kInt32});
      std::vector<std::uint8_t> text(static_cast<std::size_t>(round) * 1401,
                                     static_cast<std::uint8_t>(round));
      if (collective.rank() == 0) {
        collective.wait(sum);
        collective.send(flat_of(text), 1 + round % 2);
      } else if (collective.rank() == 1 + round % 2) {
        std::vector<std::uint8_t> got(text.size());
        collective.receive(flat_of(got), 0);
        EXPECT_EQ(got, text);
      }
      collective.wait(sum);
      EXPECT_EQ(number, 3);
    }
  });
}

TEST(ShmChunks, RefuseAnotherLengthAndAnotherRank) {
  run_ranks(2, [](Collective& collective) {
    std::vector<std::uint8_t> text(collective.rank() == 0 ? 8 : 9);
    expect_says(message_of([&] { collective.send(flat_of(text), 2); }),
                "it must be another one of 2");
    expect_says(message_of([&] { collective.send(flat_of(text), collective.rank()); }),
                "it must be another one of 2");
    const auto said = message_of([&] {
      if (collective.rank() == 0)
        collective.send(flat_of(text), 1);
      else
        collective.receive(flat_of(text), 0);
    });
    expect_says(said, "rank 0 sends 8 bytes to rank 1, which expects 9");
  });
}

// Both send first: with the default timeout nobody waits for it.
TEST(ShmChunks, SayAtOnceThatBothSend) {
  run_ranks(2, [](Collective& collective) {
    std::vector<std::uint8_t> text(3);
    const auto said = message_of([&] { collective.send(flat_of(text), 1 - collective.rank()); });
    expect_says(said, "rank 0 waits in send of 3 bytes");
    expect_says(said, "they do different things");
  });
}

TEST(ShmChunks, AreGivenUpByAReset) {
  run_ranks(2, [](Collective& collective) {
    std::vector<std::uint8_t> text(100, 1);
    if (collective.rank() == 0) {
      expect_says(message_of([&] { collective.send(flat_of(text), 1); }), "reset()");
    }
    collective.reset();
    text.assign(100, 2);
    if (collective.rank() == 0) return collective.send(flat_of(text), 1);
    std::vector<std::uint8_t> got(100);
    collective.receive(flat_of(got), 0);
    EXPECT_EQ(got, text);
  });
}

TEST(ShmSplit, MakesGroupsThatSumAlone) {
  run_ranks(4, [](Collective& collective) {
    const int rank = collective.rank();
    const auto half = collective.split(rank % 2, -rank);  // the highest one is first
    ASSERT_NE(half, nullptr);
    EXPECT_EQ(half->world_size(), 2);
    EXPECT_EQ(half->rank(), rank < 2 ? 1 : 0);
    const std::vector<std::int32_t> mine{rank};
    EXPECT_EQ(reduced(*half, mine, Dtype::kInt32, Reduction::kSum)[0], rank % 2 == 0 ? 2 : 4);
    EXPECT_EQ(reduced(collective, mine, Dtype::kInt32, Reduction::kSum)[0], 6);
    const auto alone = half->split(half->rank(), 0);
    EXPECT_EQ(alone->world_size(), 1);
    EXPECT_EQ(reduced(*alone, mine, Dtype::kInt32, Reduction::kSum)[0], rank);
  });
}

TEST(ShmSplit, LeavesOutWhoWantsNoGroup) {
  run_ranks(3, [](Collective& collective) {
    const auto group = collective.split(collective.rank() == 1 ? -1 : 7, 0);
    if (collective.rank() == 1) {
      EXPECT_EQ(group, nullptr);
    } else {
      group->barrier();
      EXPECT_EQ(group->world_size(), 2);
    }
    collective.barrier();
  });
}

// Checks the errors of both ranks when each does a sum of its own kind. `theirs` is rank 1's.
void expect_unlike(Reduction mine, Reduction theirs, const std::vector<std::string_view>& words) {
  run_ranks(2, [&](Collective& collective) {
    const auto memory = collective.allocate(64);
    const Reduction reduction = collective.rank() == 0 ? mine : theirs;
    const auto said = message_of([&] {
      collective.wait(collective.launch({memory.get(), 16, Dtype::kFloat32}, reduction));
    });
    for (const auto word : words) expect_says(said, word);
    expect_says(said, ": they do different things, or train different models");
  });
}

TEST(ShmDesyncReports, NameEachReduction) {
  expect_unlike(Reduction::kMax, Reduction::kMin,
                {"rank 0 takes the greatest of 16 elements of type float32 at byte 0",
                 "rank 1 takes the least of 16 elements"});
  expect_unlike(
      Reduction::kAverage, Reduction::kSum,
      {"rank 0 averages 16 elements of type float32 at byte 0 in reduction of 64 bytes "
       "(operation ",
       "rank 1 adds 16 elements of type float32 at byte 0 in sum of 64 bytes (operation "});
  expect_unlike(Reduction::kWideSum, Reduction::kSum,
                {"rank 0 adds in 32 bits 16 elements", "rank 1 adds 16 elements"});
}

TEST(ShmDesyncReports, TellABarrierFromAGatherOfNothing) {
  run_ranks({.ranks = 2, .timeout = std::chrono::seconds(600)}, [](Collective& collective) {
    const auto said = message_of([&] {
      if (collective.rank() == 0)
        collective.barrier();
      else
        collective.all_gather_bytes({});
    });
    expect_says(said, "does barrier (operation 2)");
    expect_says(said, "does gather of 0 bytes (operation 2)");
    expect_says(said, ": they do different things");
  });
}

TEST(ShmDesyncReports, NameASumThatOtherHostsHaveAPartIn) {
  run_ranks(2, [&](Collective& collective) {
    auto& host = dynamic_cast<HostCollective&>(collective);
    const auto memory = collective.allocate(64);
    const Flat flat{memory.get(), 16, Dtype::kFloat32};
    const auto said = message_of([&] {
      if (collective.rank() == 1) return collective.wait(collective.launch_sum(flat));
      const Ticket ticket = host.launch_chunks(flat, all_reduce_of(Reduction::kSum));
      host.await_launch(ticket);
      host.owned_chunk(ticket);
    });
    expect_says(said, "rank 0 adds 16 elements of type float32 at byte 0, with other hosts");
    expect_says(said, "rank 1 adds 16 elements of type float32 at byte 0");
  });
}

TEST(MonitoredBarrier, NamesAllThatAreLate) {
  int gave_up[2];
  ASSERT_EQ(::pipe(gave_up), 0);
  run_ranks(4, [&gave_up](Collective& collective) {
    collective.monitored_barrier(std::chrono::seconds(20));
    const bool late = collective.rank() % 2 == 1;
    // A broadcast of two pieces: rank 0 need not wait in it, and meets the late ones in the
    // barrier.
    std::vector<std::uint8_t> pieces(2 * Collective::kGatherBytesMax);
    if (!late) {
      try {
        collective.broadcast(flat_of(pieces), 0);
      } catch (const CollectiveError&) {  // rank 2, when rank 0 has given up
      }
    }
    if (late) {
      char word = 0;  // comes when one of the others has given up
      EXPECT_EQ(::read(gave_up[0], &word, 1), 1);
      return;
    }
    const auto said =
        message_of([&] { collective.monitored_barrier(std::chrono::milliseconds(300)); });
    expect_says(said, "monitored barrier: ranks 1, 3 did not come within 0.3 s");
    EXPECT_EQ(::write(gave_up[1], "w", 1), 1);
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, ShmOperations, ::testing::Values(2, 3, 4));

}  // namespace
}  // namespace ddprun::worker
