// Bytes and words that nobody can guess.
#include "base/random_number.h"

#include <gtest/gtest.h>

#include <array>

namespace ddprun {
namespace {

TEST(RandomNumber, EachByteOfAMemoryIsFilled) {
  std::array<unsigned char, kMostRandomBytes> seen{};
  // A byte stays 0 by chance in one of 256 calls: in 64 calls it does not.
  for (int call = 0; call < 64; ++call) {
    std::array<unsigned char, kMostRandomBytes> bytes{};
    fill_with_random(bytes.data(), bytes.size());
    for (std::size_t i = 0; i < bytes.size(); ++i) seen.at(i) |= bytes.at(i);
  }
  for (std::size_t i = 0; i < seen.size(); ++i) EXPECT_NE(seen.at(i), 0) << i;
  EXPECT_NE(random_number(), random_number());
}

TEST(RandomNumber, AWordHasTwoLowerCaseDigitsForEachByte) {
  const std::string word = random_hex(kMostRandomBytes);
  EXPECT_EQ(word.size(), 2 * kMostRandomBytes);
  EXPECT_EQ(word.find_first_not_of("0123456789abcdef"), std::string::npos) << word;
  EXPECT_NE(word, random_hex(kMostRandomBytes));
  EXPECT_EQ(random_hex(0), "");
}

}  // namespace
}  // namespace ddprun
