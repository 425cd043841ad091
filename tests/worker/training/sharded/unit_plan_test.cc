// The layout of a unit, and the order of units. No ranks.
#include <gtest/gtest.h>

#include "worker/training/sharded/unit_layout.h"
#include "worker/training/sharded/unit_order.h"

namespace ddprun::worker {
namespace {

using Units = std::vector<std::size_t>;

TEST(UnitLayout, AlignsParametersAndDealsEqualShards) {
  const std::vector<std::int64_t> counts{20, 3, 41};
  const UnitLayout layout(counts, 16, 2);
  EXPECT_EQ(layout.length(), 89);
  EXPECT_EQ(layout.parameters(), (std::vector<FlatRange>{{0, 20}, {32, 35}, {48, 89}}));
  EXPECT_EQ(layout.gaps(), (std::vector<FlatRange>{{20, 32}, {35, 48}}));
  EXPECT_EQ(layout.shards(), (std::vector<FlatRange>{{0, 48}, {48, 89}}));
}

TEST(UnitLayout, MayLeaveTheLastRanksNothing) {
  const std::vector<std::int64_t> counts{17};
  EXPECT_EQ(UnitLayout(counts, 16, 4).shards(),
            (std::vector<FlatRange>{{0, 16}, {16, 17}, {17, 17}, {17, 17}}));
  EXPECT_EQ(UnitLayout(counts, 16, 1).shards(), (std::vector<FlatRange>{{0, 17}}));
}

TEST(UnitLayout, MayEndWithAGapThatMakesAllShardsEqual) {
  const std::vector<std::int64_t> counts{17};
  const UnitLayout layout(counts, 16, 4, /*equal_shards=*/true);
  EXPECT_EQ(layout.length(), 64);
  EXPECT_EQ(layout.parameters(), (std::vector<FlatRange>{{0, 17}}));
  EXPECT_EQ(layout.gaps(), (std::vector<FlatRange>{{17, 64}}));
  EXPECT_EQ(layout.shards(), (std::vector<FlatRange>{{0, 16}, {16, 32}, {32, 48}, {48, 64}}));
}

// Every element is a parameter's or a gap's, and one rank's, whatever the sizes.
TEST(UnitLayout, CoversTheFlatParameterOnce) {
  for (int ranks = 1; ranks <= 5; ++ranks) {
    for (std::int64_t size = 1; size < 200; size += 7) {
      const std::vector<std::int64_t> counts{size, 1, 3 * size};
      const UnitLayout layout(counts, 8, ranks, /*equal_shards=*/size % 2 == 0);
      std::int64_t elements = 0;
      for (const FlatRange& range : layout.parameters()) elements += range.length();
      for (const FlatRange& range : layout.gaps()) elements += range.length();
      EXPECT_EQ(elements, layout.length());
      std::int64_t end = 0;
      for (const FlatRange& shard : layout.shards()) {
        EXPECT_EQ(shard.begin, end);
        end = shard.end;
      }
      EXPECT_EQ(end, layout.length());
    }
  }
}

TEST(UnitOrder, GathersTheNextOneAheadInBothDirections) {
  UnitOrder order(3);
  EXPECT_EQ(order.begin_forward(0, true), 1U);
  EXPECT_EQ(order.begin_forward(1, true), 2U);
  EXPECT_EQ(order.begin_forward(2, true), std::nullopt);
  EXPECT_TRUE(order.is_last(2));
  EXPECT_EQ(order.begin_backward(2), 1U);
  EXPECT_EQ(order.begin_backward(1), 0U);
  EXPECT_EQ(order.begin_backward(0), std::nullopt);
}

TEST(UnitOrder, SumsInReverseWhateverIsReadyFirst) {
  UnitOrder order(3);
  for (const std::size_t unit : {0U, 1U, 2U}) order.begin_forward(unit, true);
  EXPECT_EQ(order.complete(1), Units{});
  EXPECT_EQ(order.complete(2), (Units{2, 1}));
  EXPECT_EQ(order.complete(0), Units{0});
  EXPECT_EQ(order.end_backward(), Units{});
}

TEST(UnitOrder, SumsAtTheEndWhatMissesGradients) {
  UnitOrder order(3);
  for (const std::size_t unit : {0U, 1U, 2U}) order.begin_forward(unit, true);
  EXPECT_EQ(order.complete(2), Units{2});
  EXPECT_EQ(order.complete(0), Units{});
  EXPECT_EQ(order.end_backward(), (Units{1, 0}));
}

TEST(UnitOrder, LearnsTheOrderOfThePassBefore) {
  UnitOrder order(3);
  for (const std::size_t unit : {2U, 0U, 2U}) order.begin_forward(unit, true);
  EXPECT_EQ(order.complete(0), Units{0});
  EXPECT_EQ(order.complete(2), Units{2});
  order.end_backward();
  EXPECT_EQ(order.begin_forward(2, false), 0U);
  EXPECT_TRUE(order.is_last(0));
  EXPECT_EQ(order.begin_forward(1, false), std::nullopt);
  EXPECT_EQ(order.end_backward(), Units{}) << "an evaluation is no pass";
}

TEST(UnitOrder, KnowsASecondBackwardOfOneForward) {
  UnitOrder order(2);
  for (const std::size_t unit : {0U, 1U}) order.begin_forward(unit, true);
  order.end_backward();
  EXPECT_EQ(order.begin_backward(1), std::nullopt);
  EXPECT_EQ(order.complete(1), Units{1});
  EXPECT_EQ(order.begin_backward(0), std::nullopt);
  EXPECT_EQ(order.complete(0), Units{0});
}

}  // namespace
}  // namespace ddprun::worker
