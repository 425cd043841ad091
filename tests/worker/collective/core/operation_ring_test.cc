#include "worker/collective/core/operation_ring.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>

namespace ddprun::worker {
namespace {

TEST(OperationRing, KeepsTheLatestAndTheirNumbers) {
  const auto ring = std::make_unique<OperationRing>();
  EXPECT_FALSE(ring->last().has_value());
  EXPECT_FALSE(ring->find(0).has_value());
  const std::uint32_t first = ring->begin(OperationKind::kSum, 40);
  EXPECT_EQ(first, 1U);
  EXPECT_EQ(ring->last()->done_ns, 0);
  ring->end(first);
  EXPECT_GE(ring->find(first)->done_ns, ring->find(first)->begun_ns);
  for (std::uint32_t i = 0; i < OperationRing::kLength; ++i)
    ring->begin(OperationKind::kBarrier, 0);
  EXPECT_FALSE(ring->find(first).has_value()) << "it is too long ago";
  EXPECT_TRUE(ring->find(first + 1).has_value());
  ring->end(first);  // changes nothing of the one that has its place now
  EXPECT_EQ(ring->last()->done_ns, 0);
  EXPECT_EQ(ring->last()->number, OperationRing::kLength + 1);
}

TEST(OperationRing, IsPrintedForPeople) {
  EXPECT_EQ(
      describe(
          {.number = 12, .kind = OperationKind::kSum, .bytes = 4096, .begun_ns = 1, .done_ns = 0}),
      "sum of 4096 bytes (operation 12)");
  EXPECT_EQ(
      describe(
          {.number = 3, .kind = OperationKind::kBarrier, .bytes = 0, .begun_ns = 1, .done_ns = 0}),
      "barrier (operation 3)");
  EXPECT_EQ(
      describe({.number = 12, .kind = OperationKind::kSum, .name = "bucket 3", .bytes = 4096}),
      "sum of bucket 3, 4096 bytes (operation 12)");
}

TEST(OperationName, IsCutToItsPlaceInOneLine) {
  EXPECT_EQ(OperationName().text(), "");
  EXPECT_EQ(OperationName("loss").text(), "loss");
  EXPECT_EQ(OperationName("two\nlines\t").text(), "two?lines?");
  EXPECT_EQ(OperationName(std::string(24, 'a')).text(), std::string(24, 'a'));
  EXPECT_EQ(OperationName(std::string(30, 'a')).text(), std::string(24, 'a'));
  // Not in the middle of a character.
  EXPECT_EQ(OperationName(std::string(23, 'a') + "ä").text(), std::string(23, 'a'));
  EXPECT_EQ(OperationName(std::string(22, 'a') + "ä").text(), std::string(22, 'a') + "ä");
}

}  // namespace
}  // namespace ddprun::worker
