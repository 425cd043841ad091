#include "rendezvous/core/timeline.h"

#include <gtest/gtest.h>

namespace ddprun::rendezvous {
namespace {

TEST(Timeline, ARoundLastsUntilTheNextOne) {
  Timeline timeline;
  timeline.round_began(1, 8, 100);
  EXPECT_TRUE(timeline.periods().front().lasts());
  timeline.round_began(2, 4, 250);
  ASSERT_EQ(timeline.periods().size(), 2U);
  EXPECT_EQ(timeline.periods()[0].end_ms, 250);
  EXPECT_EQ(timeline.periods()[1],
            (Period{.kind = PeriodKind::kRound, .begin_ms = 250, .round = 2, .workers = 4}));
  timeline.round_ended(300);
  timeline.round_ended(400);
  EXPECT_EQ(timeline.periods()[1].end_ms, 300);
}

TEST(Timeline, AStandstillIsOnePeriodUntilStepsGoOn) {
  Timeline timeline;
  timeline.round_began(3, 8, 100);
  timeline.stands_still("rank 2 sleeps", {2}, 200);
  timeline.stands_still("rank 2 is stopped", {2, 3}, 220);
  ASSERT_EQ(timeline.periods().size(), 2U);
  EXPECT_EQ(timeline.periods()[1].round, 3);
  EXPECT_EQ(timeline.periods()[1].text, "rank 2 is stopped");
  EXPECT_EQ(timeline.periods()[1].ranks, (std::vector<int>{2, 3}));
  timeline.went_on(300);
  EXPECT_EQ(timeline.periods()[1].end_ms, 300);
  EXPECT_TRUE(timeline.periods()[1].ranks.empty());
  EXPECT_TRUE(timeline.periods()[0].lasts());
  timeline.stands_still("again", {}, 400);
  timeline.round_ended(500);
  EXPECT_EQ(timeline.periods()[2].end_ms, 500);
}

TEST(Timeline, IsBoundedAndKeepsTheRoundThatLasts) {
  Timeline timeline;
  timeline.round_began(1, 8, 0);
  for (int i = 1; i < 100; ++i) {
    timeline.stands_still("x", {}, i);
    timeline.went_on(i);
  }
  EXPECT_EQ(timeline.periods().size(), kMostPeriods);
  EXPECT_EQ(timeline.periods().front().kind, PeriodKind::kRound);
  EXPECT_EQ(timeline.periods().back().begin_ms, 99);
}

TEST(Timeline, AClockThatWasSetBackMakesNoNegativeLength) {
  Timeline timeline;
  timeline.round_began(1, 8, 1000);
  timeline.round_ended(10);
  EXPECT_EQ(timeline.periods().front().end_ms, 1000);
}

}  // namespace
}  // namespace ddprun::rendezvous
