// One word of all ranks, as its sums tell.
#include "worker/collective/core/equal_word.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace ddprun::worker {
namespace {

bool equal(const std::vector<std::uint64_t>& words) {
  WordSums sums{};
  for (const std::uint64_t word : words) {
    const WordSums pieces = pieces_of(word);
    for (std::size_t i = 0; i < sums.size(); ++i) sums[i] += pieces[i];
  }
  return all_equal(sums, words.size());
}

TEST(EqualWord, IsEqualWhereAllRanksHaveIt) {
  for (const std::uint64_t word : {0UL, 1UL, 0xffffffffffffffffUL, 0x0123456789abcdefUL}) {
    EXPECT_TRUE(equal({word}));
    EXPECT_TRUE(equal({word, word}));
    EXPECT_TRUE(equal(std::vector<std::uint64_t>(10'000, word)));
  }
}

TEST(EqualWord, IsUnlikeWhereOneBitIs) {
  for (int bit = 0; bit < 64; ++bit) {
    std::vector<std::uint64_t> words(1000, 0xfedcba9876543210UL);
    words[500] ^= 1UL << bit;
    EXPECT_FALSE(equal(words)) << bit;
  }
}

// Their mean is the word of the rank in the middle.
TEST(EqualWord, IsUnlikeWhereOthersAreAsFarAboveAsBelow) {
  EXPECT_FALSE(equal({6, 7, 8}));
  EXPECT_FALSE(equal({0x00010000UL, 0x00020000UL, 0x00030000UL}));
}

// The largest difference of all: half of the ranks have all bits, half of them none.
TEST(EqualWord, IsUnlikeInLargeWorlds) {
  for (const std::size_t ranks : {2UL, 512UL, 1024UL, 65'536UL}) {
    std::vector<std::uint64_t> words(ranks, 0);
    std::fill_n(words.begin(), ranks / 2, ~0UL);
    EXPECT_FALSE(equal(words)) << ranks;
  }
}

TEST(EqualWord, IsAskedOfAWorldOfOne) {
  const auto alone = make_alone_collective();
  EqualWord word(*alone);
  word.launch(7);
  EXPECT_TRUE(word.under_way());
  EXPECT_TRUE(word.finish());
  EXPECT_FALSE(word.under_way());
}

}  // namespace
}  // namespace ddprun::worker
