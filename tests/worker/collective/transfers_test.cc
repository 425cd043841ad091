// All-to-all on ranks of each kind: compared with a model of plain arrays.
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <random>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/worker/collective/kinds_of_ranks.h"

namespace ddprun::worker {
namespace {

class Transfers : public KindsOfRanks {};

constexpr std::size_t kElements = 70'001;

// The bytes of each rank before the transfers: no two elements in line are alike.
std::vector<std::vector<std::byte>> bytes_of_ranks(int ranks) {
  std::vector<std::vector<std::byte>> made;
  for (int rank = 0; rank < ranks; ++rank) {
    std::mt19937_64 random(static_cast<unsigned>(rank + 1));
    std::vector<std::uint64_t> words(kElements);
    std::ranges::generate(words, random);
    const auto bytes = std::as_bytes(std::span(words));
    made.emplace_back(bytes.begin(), bytes.end());
  }
  return made;
}

// PyTorch's: a block for each rank, from the first half into the second.
std::vector<Transfer> even(int ranks, std::size_t count) {
  const std::size_t block = count / 2 / static_cast<std::size_t>(ranks);
  std::vector<Transfer> all;
  for (int from = 0; from < ranks; ++from) {
    for (int to = 0; to < ranks; ++to) {
      const std::size_t begin = block * static_cast<std::size_t>(to);
      all.push_back(
          {from, to, begin, begin + block, count / 2 + block * static_cast<std::size_t>(from)});
    }
  }
  return all;
}

// Elements of the first half, of any length, some of them several times or not at all.
std::vector<Transfer> wild(int ranks, std::size_t count, unsigned seed) {
  std::mt19937 dice(seed);
  std::vector<std::size_t> next(static_cast<std::size_t>(ranks), count / 2);
  std::vector<Transfer> all;
  for (int i = 0; i < 8 * ranks; ++i) {
    const auto from = static_cast<int>(dice() % static_cast<unsigned>(ranks));
    const auto to = static_cast<int>(dice() % static_cast<unsigned>(ranks));
    std::size_t& target = next[static_cast<std::size_t>(to)];
    const std::size_t most = std::min(count / 2, count - target) / 4;
    const std::size_t length = dice() % (most + 1);
    const std::size_t begin = dice() % (count / 2 - length + 1);
    all.push_back({from, to, begin, begin + length, target});
    target += length + dice() % 3;
    target = std::min(target, count);
  }
  std::ranges::shuffle(all, dice);
  return all;
}

std::vector<std::vector<Transfer>> patterns(int ranks, std::size_t count) {
  // One rank gives all that it has to all, and one rank gets all.
  std::vector<Transfer> spread;
  std::vector<Transfer> collected;
  const std::size_t block = count / 2 / static_cast<std::size_t>(ranks);
  for (int rank = 0; rank < ranks; ++rank) {
    spread.push_back({ranks - 1, rank, 0, count / 2, count / 2});
    const std::size_t place = count / 2 + block * static_cast<std::size_t>(rank);
    collected.push_back({rank, 0, 0, block, place});
  }
  return {even(ranks, count), spread, collected, {}, wild(ranks, count, 1), wild(ranks, count, 2)};
}

// The bytes of `rank` after the transfers. `before`: of all ranks.
std::vector<std::byte> expected_of(int rank, const std::vector<Transfer>& transfers,
                                   const Flat& flat,
                                   const std::vector<std::vector<std::byte>>& before) {
  const std::size_t size = size_of(flat.dtype);
  const auto& mine = before[static_cast<std::size_t>(rank)];
  std::vector<std::byte> bytes(mine.data(), mine.data() + flat.bytes());
  for (const Transfer& one : transfers) {
    if (one.to != rank) continue;
    const auto& theirs = before[static_cast<std::size_t>(one.from)];
    std::memcpy(bytes.data() + one.target * size, theirs.data() + one.begin * size,
                (one.end - one.begin) * size);
  }
  return bytes;
}

TEST_P(Transfers, GiveEachElementToItsPlace) {
  const auto before = bytes_of_ranks(GetParam().ranks());
  run_ranks(options(), [&](Collective& ranks) {
    const auto memory = ranks.allocate(kElements * 8 + 64);
    for (const std::size_t count : {kElements, std::size_t{16}, std::size_t{0}}) {
      for (int type = 0; type < 8; ++type) {
        const auto dtype = static_cast<Dtype>(type);
        const Flat flat{memory.get() + 64, count, dtype};
        for (const auto& transfers : patterns(ranks.world_size(), count)) {
          std::memcpy(flat.data, before[static_cast<std::size_t>(ranks.rank())].data(),
                      flat.bytes());
          ranks.wait(ranks.launch_all_to_all(flat, transfers));
          const auto expected = expected_of(ranks.rank(), transfers, flat, before);
          ASSERT_TRUE(expected.empty() ||
                      std::memcmp(expected.data(), flat.data, expected.size()) == 0)
              << name_of(dtype) << ", " << count << " elements, " << transfers.size()
              << " transfers";
          ranks.barrier();
        }
      }
    }
  });
}

// Many are under way, with other operations between. Their memory is dropped.
TEST_P(Transfers, WaitInLineWithOtherOperations) {
  run_ranks(options(), [](Collective& ranks) {
    const int world = ranks.world_size();
    const auto block = static_cast<std::size_t>(4);
    const std::size_t count = 2 * block * static_cast<std::size_t>(world);
    const auto transfers = even(world, count);
    const auto kept = ranks.allocate(count * 4);
    auto* const numbers = reinterpret_cast<float*>(kept.get());
    std::fill_n(numbers, count / 2, static_cast<float>(ranks.rank()));
    const Flat flat{kept.get(), count, Dtype::kFloat32, "kept"};
    Ticket last = ranks.launch_all_to_all(flat, transfers);
    for (int i = 0; i < 300; ++i) {  // more than kLaunchedMax
      const auto dropped = ranks.allocate(count * 4);
      const Flat other{dropped.get(), count, Dtype::kFloat32};
      last = i % 2 == 0 ? ranks.launch_sum(other) : ranks.launch_all_to_all(other, transfers);
      ranks.progress();
      if (i % 100 == 50) ranks.barrier();
    }
    ranks.wait(last);
    for (std::size_t i = 0; i < count / 2; ++i)
      ASSERT_EQ(numbers[count / 2 + i], static_cast<float>(i / block)) << i;
    if (ranks.name() == "alone") return;
    EXPECT_NE(ranks.flight_record().find(":all_to_all"), std::string::npos);
  });
}

// No other rank has heard of it: the next operation works.
TEST_P(Transfers, AreRefusedBeforeAnybodyHearsOfThem) {
  run_ranks(options(), [](Collective& ranks) {
    const auto memory = ranks.allocate(400);
    const Flat flat{memory.get(), 100, Dtype::kFloat32};
    const auto refusal = [&](const std::vector<Transfer>& transfers) {
      return message_of([&] { ranks.launch_all_to_all(flat, transfers); });
    };
    if (ranks.rank() == 0) {
      const std::string world = std::to_string(ranks.world_size());
      EXPECT_EQ(refusal({{0, 0, 0, 40, 30}}),
                "all-to-all: transfer of [0, 40) of rank 0 to 30 of rank 0 overlaps itself");
      EXPECT_EQ(
          refusal({{0, 0, 0, 10, 50}, {0, 0, 20, 30, 59}}),
          "all-to-all: transfer of [0, 10) of rank 0 to 50 of rank 0 and transfer of [20, 30) "
          "of rank 0 to 59 of rank 0 overlap on rank 0");
      EXPECT_EQ(
          refusal({{0, 0, 20, 30, 60}, {0, 0, 0, 21, 70}, {0, 0, 65, 66, 0}}),
          "all-to-all: transfer of [0, 21) of rank 0 to 70 of rank 0 and transfer of [65, 66) "
          "of rank 0 to 0 of rank 0 overlap on rank 0");
      EXPECT_EQ(
          refusal({{0, 0, 65, 66, 0}, {0, 0, 20, 30, 60}}),
          "all-to-all: transfer of [65, 66) of rank 0 to 0 of rank 0 and transfer of [20, 30) "
          "of rank 0 to 60 of rank 0 overlap on rank 0");
      EXPECT_EQ(refusal({{0, 0, 90, 101, 0}}),
                "all-to-all: transfer of [90, 101) of rank 0 to 0 of rank 0 ends behind the 100 "
                "elements");
      EXPECT_EQ(refusal({{0, 0, 0, 2, 99}}),
                "all-to-all: transfer of [0, 2) of rank 0 to 99 of rank 0 ends behind the 100 "
                "elements");
      EXPECT_EQ(refusal({{0, 0, 9, 8, 50}}),
                "all-to-all: transfer of [9, 8) of rank 0 to 50 of rank 0 ends before it begins");
      EXPECT_EQ(refusal({{0, -1, 0, 1, 50}}),
                "all-to-all: transfer of [0, 1) of rank 0 to 50 of rank -1: there is no such rank "
                "among " +
                    world);
      EXPECT_EQ(refusal({{ranks.world_size(), 0, 0, 0, 50}}),
                "all-to-all: transfer of [0, 0) of rank " + world +
                    " to 50 of rank 0: there is no such rank among " + world);
    }
    ranks.wait(ranks.launch_all_to_all(flat, even(ranks.world_size(), 100)));
    ranks.barrier();
  });
}

TEST_P(Transfers, ThatAreUnlikeEndAllRanks) {
  if (GetParam().ranks() == 1) return;
  for (const bool are_transfers : {true, false}) {
    run_ranks(options(), [&](Collective& ranks) {
      const auto memory = ranks.allocate(400);
      const bool last = ranks.rank() == ranks.world_size() - 1;
      const Flat flat{memory.get(), 100, Dtype::kFloat32};
      std::vector<Transfer> transfers{{0, 1, 0, 50, 50}};
      if (last) transfers = {{0, 1, 0, 49, 50}};
      const std::string message = message_of([&] {
        ranks.wait(last && !are_transfers ? ranks.launch_sum(flat)
                                          : ranks.launch_all_to_all(flat, transfers));
        ranks.barrier();
      });
      if (are_transfers && message.find("do different things") != std::string::npos &&
          ranks.name() == "shm") {
        EXPECT_NE(message.find("gives others 100 elements"), std::string::npos) << message;
      }
      EXPECT_TRUE(says_unlike(message)) << message;
    });
  }
}

TEST_P(Transfers, NoticeARankThatDies) {
  if (GetParam().ranks() == 1) return;
  for (const bool has_launched : {false, true}) {
    const auto statuses = run_ranks_to_end(options(), [&](Collective& ranks) {
      constexpr std::size_t kCount = 4'000'000;
      const auto memory = ranks.allocate(kCount);
      const Flat flat{memory.get(), kCount, Dtype::kUInt8};
      const auto transfers = even(ranks.world_size(), kCount);
      if (ranks.rank() == 1) {
        if (has_launched) ranks.launch_all_to_all(flat, transfers);
        ::raise(SIGKILL);
      }
      const std::string message = message_of([&] {
        ranks.wait(ranks.launch_all_to_all(flat, transfers));
        ranks.barrier();
      });
      EXPECT_TRUE(says_gone(message)) << message;
    });
    for (std::size_t rank = 0; rank < statuses.size(); ++rank) {
      if (rank != 1) {
        EXPECT_EQ(statuses[rank], 0) << "rank " << rank;
      }
    }
  }
}

TEST_P(Transfers, AreGivenUpByAReset) {
  if (GetParam().ranks() == 1 || !GetParam().can_reset()) return;
  run_ranks(options(), [](Collective& ranks) {
    const auto memory = ranks.allocate(400);
    const Flat flat{memory.get(), 100, Dtype::kFloat32};
    const auto transfers = even(ranks.world_size(), 100);
    const auto exchange = [&] { ranks.wait(ranks.launch_all_to_all(flat, transfers)); };
    for (int round = 0; round < 10; ++round) {
      if (ranks.rank() != round % ranks.world_size()) {
        const std::string message = message_of(exchange);
        EXPECT_NE(message.find(" has called reset()"), std::string::npos) << message;
      }
      ranks.reset();
      exchange();
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Kinds, Transfers, all_kinds(), name_of_kind);

}  // namespace
}  // namespace ddprun::worker
