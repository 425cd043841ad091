#include "worker/collective/core/all_to_all_pieces.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <vector>

namespace ddprun::worker {
namespace {

using Matrix = AllToAllPieces::Matrix;
using Bytes = std::vector<char>;

// Byte i of those that rank `from` gives to rank `to`.
char byte_of(std::size_t from, std::size_t to, std::int64_t i) {
  return static_cast<char>(from * 31 + to * 7 + static_cast<std::size_t>(i));
}

struct Rank {
  Bytes given;
  Bytes got;
  Bytes wanted;
};

std::vector<Rank> ranks_of(const Matrix& bytes) {
  std::vector<Rank> ranks(bytes.size());
  for (std::size_t from = 0; from < bytes.size(); ++from) {
    for (std::size_t to = 0; to < bytes.size(); ++to) {
      for (std::int64_t i = 0; i < bytes[from][to]; ++i) {
        ranks[from].given.push_back(byte_of(from, to, i));
        ranks[to].wanted.push_back(byte_of(from, to, i));
      }
    }
  }
  for (Rank& rank : ranks) rank.got.resize(rank.wanted.size());
  return ranks;
}

void copy(Bytes& to, std::int64_t at, const Bytes& from, std::int64_t begin, std::int64_t length) {
  ASSERT_LE(at + length, static_cast<std::int64_t>(to.size()));
  ASSERT_LE(begin + length, static_cast<std::int64_t>(from.size()));
  std::memcpy(to.data() + at, from.data() + begin, static_cast<std::size_t>(length));
}

// Does what each rank does.
void exchange(const AllToAllPieces& all, std::vector<Rank>& ranks) {
  for (std::int64_t piece = 0; piece < all.pieces(); ++piece) {
    std::vector<Bytes> memory(ranks.size(),
                              Bytes(static_cast<std::size_t>(all.memory_bytes(piece))));
    for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
      for (const auto& range : all.gives(static_cast<std::int64_t>(rank), piece))
        copy(memory[rank], range.memory, ranks[rank].given, range.whole, range.length);
    }
    const auto before = memory;
    for (const Transfer& one : all.transfers(piece)) {
      const auto length = static_cast<std::int64_t>(one.end - one.begin);
      copy(memory[static_cast<std::size_t>(one.to)], static_cast<std::int64_t>(one.target),
           before[static_cast<std::size_t>(one.from)], static_cast<std::int64_t>(one.begin),
           length);
    }
    for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
      for (const auto& range : all.gets(static_cast<std::int64_t>(rank), piece))
        copy(ranks[rank].got, range.whole, memory[rank], range.memory, range.length);
    }
  }
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    const auto own = all.own(static_cast<std::int64_t>(rank));
    copy(ranks[rank].got, own.got, ranks[rank].given, own.given, own.length);
  }
}

TEST(AllToAllPieces, BringEachByteToItsPlaceInLittleMemory) {
  std::mt19937 dice(1);
  for (int round = 0; round < 300; ++round) {
    const std::size_t count = 1 + dice() % 5;
    const std::int64_t most = static_cast<std::int64_t>(count * 2 * AllToAllPieces::kUnit) +
                              static_cast<std::int64_t>(dice() % 9000);
    Matrix bytes(count, std::vector<std::int64_t>(count));
    for (auto& from : bytes) {
      for (auto& one : from) one = dice() % 3 == 0 ? 0 : static_cast<std::int64_t>(dice() % 20'000);
    }
    auto ranks = ranks_of(bytes);
    const AllToAllPieces all(bytes, most);
    for (std::int64_t piece = 0; piece < all.pieces(); ++piece)
      ASSERT_LE(all.memory_bytes(piece), most) << round;
    exchange(all, ranks);
    for (const Rank& rank : ranks) ASSERT_EQ(rank.got, rank.wanted) << round;
  }
}

// One pair has all: the others need no memory for bytes that they have not.
TEST(AllToAllPieces, OfOnePairAreFew) {
  constexpr std::int64_t kMost = 1 << 20;
  Matrix bytes(64, std::vector<std::int64_t>(64));
  bytes[3][9] = 16 * kMost;
  const AllToAllPieces all(bytes, kMost);
  EXPECT_EQ(all.pieces(), 16);
  EXPECT_EQ(all.memory_bytes(0), kMost);
}

TEST(AllToAllPieces, AreOneIfNothingTravels) {
  const AllToAllPieces own({{100, 0}, {0, 7}}, 1000);
  EXPECT_EQ(own.pieces(), 1);
  EXPECT_EQ(own.memory_bytes(0), 0);
  EXPECT_TRUE(own.transfers(0).empty());
  EXPECT_EQ(own.own(0).length, 100);
}

}  // namespace
}  // namespace ddprun::worker
