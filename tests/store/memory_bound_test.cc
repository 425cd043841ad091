#include "store/memory_bound.h"

#include <gtest/gtest.h>

namespace ddprun::store {
namespace {

const Error kFull(ErrorCode::kLimit, "stored bytes");

TEST(MemoryBound, LooksOnlyWhenTheStoreHoldsMuch) {
  const MemoryBound bound{StoreLimits{}};
  EXPECT_FALSE(bound.is_due({.stored = MemoryBound::kFreeBytes - 1}));
  EXPECT_TRUE(bound.is_due(
      {.stored = MemoryBound::kFreeBytes / 2, .buffered = MemoryBound::kFreeBytes / 2}));
}

TEST(MemoryBound, LeavesTheLimitsWhereMemoryIsPlentyOrUnknown) {
  MemoryBound bound{StoreLimits{}};
  StoreLimits limits;
  const MemoryBound::MemoryUse held{.stored = 20 * kMiB};
  for (const auto left :
       {std::optional<std::uint64_t>(64'000 * kMiB), std::optional<std::uint64_t>()}) {
    bound.looked(limits, held, left);
    EXPECT_EQ(limits.stored_bytes, kStoredBytes);
    EXPECT_EQ(limits.buffered_bytes, StoreLimits{}.buffered_bytes);
    EXPECT_FALSE(bound.is_due({.stored = 80 * kMiB}));
    EXPECT_TRUE(bound.is_due({.stored = 84 * kMiB}));
    EXPECT_FALSE(bound.refused(kFull, held.stored).has_value()) << "not for want of memory";
  }
}

TEST(MemoryBound, LowersThemToWhatIsLeftAndLooksOftener) {
  MemoryBound bound{StoreLimits{}};
  StoreLimits limits;
  bound.looked(limits, {.stored = 20 * kMiB}, MemoryBound::kKeptBytes + 8 * kMiB);
  EXPECT_EQ(limits.stored_bytes, 28 * kMiB);
  EXPECT_TRUE(bound.is_due({.stored = 22 * kMiB}));
  EXPECT_FALSE(bound.is_due({.stored = 21 * kMiB}));
  bound.looked(limits, {.stored = 28 * kMiB}, MemoryBound::kKeptBytes / 2);
  EXPECT_EQ(limits.stored_bytes, 28 * kMiB) << "nothing more";
}

TEST(MemoryBound, SaysSoOnceAndLooksAgain) {
  MemoryBound bound{StoreLimits{}};
  StoreLimits limits;
  bound.looked(limits, {.stored = 20 * kMiB}, 0);
  EXPECT_FALSE(bound.refused({ErrorCode::kProtocol, "x"}, 0).has_value());
  const auto told = bound.refused(kFull, 20 * kMiB);
  ASSERT_TRUE(told.has_value());
  EXPECT_NE(told->find("holds 20 MiB, and 0 MiB of memory are left"), std::string::npos) << *told;
  EXPECT_FALSE(bound.refused(kFull, 20 * kMiB).has_value());
  EXPECT_TRUE(bound.is_due({.stored = 20 * kMiB})) << "memory may be free again";
  bound.looked(limits, {.stored = 20 * kMiB}, 64'000 * kMiB);
  EXPECT_EQ(limits.stored_bytes, kStoredBytes);
}

}  // namespace
}  // namespace ddprun::store
