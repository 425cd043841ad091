// Numbers in texts.
#include "base/numbers.h"

#include <gtest/gtest.h>

#include <cstdint>

namespace ddprun {
namespace {

TEST(Numbers, AWholeTextIsANumberOrNothing) {
  EXPECT_EQ(parse_whole<int>("-12"), -12);
  EXPECT_EQ(parse_whole<std::uint16_t>("65535"), 65535);
  EXPECT_EQ(parse_whole<double>("0.5"), 0.5);
  for (const char* text : {"", " 1", "1 ", "+1", "4x", "0x4", "2147483648"})
    EXPECT_EQ(parse_whole<int>(text), std::nullopt) << text;
  EXPECT_EQ(parse_whole<std::uint64_t>("-1"), std::nullopt);
}

TEST(Numbers, ALeadingNumberEndsWhereTheDigitsDo) {
  EXPECT_EQ(leading_number<std::uint64_t>("65536kB"), 65536U);
  EXPECT_EQ(leading_number<int>("7"), 7);
  for (const char* text : {"", "kB", " 1", "99999999999999999999"})
    EXPECT_EQ(leading_number<int>(text), std::nullopt) << text;
}

}  // namespace
}  // namespace ddprun
