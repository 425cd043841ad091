#include "rendezvous/core/inquiry.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>

namespace ddprun::rendezvous {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr std::int64_t kRound = 1;

std::string ranks_of(const std::vector<RankEvidence>& evidence) {
  std::string text;
  for (const RankEvidence& one : evidence) text += fmt::format(" {}", one.rank);
  return text;
}

// Three nodes of two workers each, as sessions 1, 2 and 3: ranks 0-1, 2-3 and 4-5. The verdict says
// of which ranks there is evidence.
struct InquiryTest : testing::Test {
  void begin(int nodes = 3, int older_node = 0) {
    membership.emplace(
        RoundPolicy{.min_nodes = nodes, .max_nodes = nodes, .settings = {.last_call = seconds(0)}});
    for (int node = 1; node <= nodes; ++node) {
      NodeSpec spec{.node_id = fmt::format("n{}", node), .local_world_size = 2};
      spec.max_restarts = 3;
      spec.answers_looks = node != older_node;
      membership->joined(static_cast<SessionId>(node), spec, {"10.0.0.1"}, now);
    }
    ASSERT_EQ(membership->phase(), Membership::Phase::kRunning);
  }
  std::string suspect(SessionId from, std::int64_t round = kRound) {
    return print(inquiry.suspected(from, round, *membership, now));
  }
  std::string answer(SessionId from, const std::vector<int>& ranks, std::int64_t number = 1,
                     std::int64_t round = kRound) {
    std::vector<RankEvidence> evidence;
    for (const int rank : ranks) evidence.push_back({.rank = rank});
    return print(inquiry.answered(from, round, number, std::move(evidence)));
  }
  std::string after(milliseconds time) {
    now += time;
    return print(inquiry.tick(now));
  }
  static std::string print(const std::optional<Announcement>& announcement) {
    if (!announcement) return "";
    std::string text = "to";
    for (const SessionId to : announcement->to) text += fmt::format(" {}", to);
    if (const auto* look = std::get_if<Look>(&announcement->message))
      return text + fmt::format(": look {} of round {}", look->inquiry, look->round);
    const auto& told = std::get<StandstillVerdict>(announcement->message);
    return text + fmt::format(": verdict {} of round {}:{}", told.inquiry, told.round,
                              told.verdict.sentence);
  }

  Time now = Time(std::chrono::hours(1));
  std::optional<Membership> membership;
  std::vector<RankEvidence> judged;  // the last
  Inquiry inquiry{[this](std::vector<RankEvidence> evidence, int world_size) {
    judged = std::move(evidence);
    return Verdict{.sentence = fmt::format("{} of {}", ranks_of(judged), world_size)};
  }};
};

TEST_F(InquiryTest, AsksAllNodesAndTellsAllOfThemTheVerdict) {
  begin();
  EXPECT_EQ(suspect(2), "to 1 2 3: look 1 of round 1");
  EXPECT_EQ(answer(1, {0, 1}), "");
  EXPECT_EQ(answer(3, {5, 4}), "");
  EXPECT_EQ(answer(2, {2}), "");
  EXPECT_TRUE(inquiry.is_open());
  EXPECT_EQ(answer(2, {3}), "to 1 2 3: verdict 1 of round 1: 0 1 2 3 4 5 of 6");
  EXPECT_FALSE(inquiry.is_open());
  EXPECT_EQ(inquiry.look_again_at(), Time::max());
}

TEST_F(InquiryTest, WaitsNoLongerThanItsLimit) {
  begin();
  suspect(1);
  EXPECT_EQ(inquiry.look_again_at(), now + kInquiryLimit);
  answer(3, {4, 5});
  EXPECT_EQ(after(kInquiryLimit - milliseconds(1)), "");
  EXPECT_EQ(after(milliseconds(1)), "to 1 2 3: verdict 1 of round 1: 4 5 of 6");
  EXPECT_EQ(answer(1, {0, 1}), "") << "too late";
  EXPECT_EQ(after(kInquiryLimit), "");
}

TEST_F(InquiryTest, NobodyMayAnswer) {
  begin();
  suspect(1);
  EXPECT_EQ(after(kInquiryLimit), "to 1 2 3: verdict 1 of round 1: of 6");
}

TEST_F(InquiryTest, OnlyTheFirstSuspicionOpensIt) {
  begin();
  suspect(1);
  const Time ends = inquiry.look_again_at();
  now += seconds(5);
  EXPECT_EQ(suspect(1), "");
  EXPECT_EQ(suspect(3), "");
  EXPECT_EQ(inquiry.look_again_at(), ends);
  after(kInquiryLimit);
  EXPECT_EQ(suspect(3), "to 1 2 3: look 2 of round 1");
  EXPECT_EQ(answer(1, {0, 1}, 1), "") << "of the look before";
  answer(1, {0, 1}, 2);
  answer(2, {2, 3}, 2);
  EXPECT_EQ(answer(3, {4, 5}, 2), "to 1 2 3: verdict 2 of round 1: 0 1 2 3 4 5 of 6");
}

TEST_F(InquiryTest, OpensOncePerSecondAtMost) {
  begin(1);
  for (int times = 0; times < 1000; ++times) {
    suspect(1);
    answer(1, {0, 1}, 1);
  }
  now += milliseconds(999);
  EXPECT_EQ(suspect(1), "");
  now += milliseconds(1);
  EXPECT_EQ(suspect(1), "to 1: look 2 of round 1");
}

TEST_F(InquiryTest, HearsNobodyWhoIsNotOfTheRound) {
  begin();
  membership->joined(7, {.node_id = "spare", .answers_looks = true}, {}, now);
  EXPECT_EQ(suspect(7), "") << "a spare";
  EXPECT_EQ(suspect(8), "") << "nobody knows it";
  EXPECT_EQ(suspect(1, 0), "");
  EXPECT_EQ(suspect(1, 2), "");
  EXPECT_EQ(suspect(1), "to 1 2 3: look 1 of round 1") << "they did not keep it from others";
  EXPECT_EQ(answer(7, {0, 1, 2, 3, 4, 5}), "");
  after(kInquiryLimit);
  EXPECT_TRUE(judged.empty());
}

TEST_F(InquiryTest, TakesFromEachNodeItsOwnRanksOnce) {
  begin();
  suspect(1);
  constexpr int kHighest = std::numeric_limits<int>::max();
  constexpr int kLowest = std::numeric_limits<int>::min();
  EXPECT_EQ(answer(1, {-1, 0, 2, 3, 4, 5, 6, kHighest, kLowest}), "");
  EXPECT_EQ(answer(1, {1}, 1, 2), "") << "another round";
  EXPECT_EQ(answer(1, {1}, 2), "") << "another inquiry";
  EXPECT_EQ(answer(2, {2, 2}), "");
  inquiry.answered(2, kRound, 1, {{.rank = 2, .place = "later"}});
  EXPECT_EQ(after(kInquiryLimit), "to 1 2 3: verdict 1 of round 1: 0 2 of 6");
  EXPECT_EQ(judged.back().place, "");
}

TEST_F(InquiryTest, LeavesOutGroupsOfRanksThatNobodyHas) {
  begin(1);
  suspect(1);
  inquiry.answered(1, kRound, 1,
                   {{.rank = 0,
                     .groups = {{.name = "a", .ranks = {0, 2}},
                                {.name = "b", .ranks = {0, 1}},
                                {.name = "c", .ranks = {-1}},
                                {.name = "d"}}},
                    {.rank = 1}});
  ASSERT_EQ(judged.size(), 2U);
  ASSERT_EQ(judged[0].groups.size(), 2U);
  EXPECT_EQ(judged[0].groups[0].name, "b");
  EXPECT_EQ(judged[0].groups[1].name, "d");
}

TEST_F(InquiryTest, AnOlderNodeIsNeitherAskedNorWaitedFor) {
  begin(3, 2);
  EXPECT_EQ(suspect(2), "") << "it would not hear the verdict";
  EXPECT_EQ(suspect(1), "to 1 3: look 1 of round 1");
  answer(1, {0, 1});
  EXPECT_EQ(answer(3, {4, 5}), "to 1 3: verdict 1 of round 1: 0 1 4 5 of 6");
}

TEST_F(InquiryTest, ANodeThatLeftAfterItsSuccessIsNotWaitedFor) {
  begin();
  membership->succeeded(2, kRound, now);
  membership->left(2, {}, now);
  EXPECT_EQ(suspect(1), "to 1 3: look 1 of round 1");
  answer(1, {0, 1});
  EXPECT_EQ(answer(3, {4, 5}), "to 1 3: verdict 1 of round 1: 0 1 4 5 of 6");
}

// The workers of a node that succeeded have ended, and others may wait for them.
TEST_F(InquiryTest, ANodeThatSucceededIsAsked) {
  begin();
  membership->succeeded(2, kRound, now);
  EXPECT_EQ(suspect(1), "to 1 2 3: look 1 of round 1");
}

TEST_F(InquiryTest, EndsWithoutAVerdictWhereTheRoundEnds) {
  begin();
  suspect(1);
  answer(1, {0, 1});
  inquiry.follow(*membership);
  EXPECT_TRUE(inquiry.is_open()) << "nothing has changed";
  membership->failed(2, kRound, {}, now);
  inquiry.follow(*membership);
  EXPECT_FALSE(inquiry.is_open());
  EXPECT_EQ(after(kInquiryLimit), "");
  EXPECT_EQ(suspect(1), "") << "no round runs";
  for (const SessionId node : {1, 2, 3})
    membership->joined(node,
                       {.node_id = fmt::format("n{}", node),
                        .local_world_size = 2,
                        .max_restarts = 3,
                        .answers_looks = true},
                       {}, now);
  ASSERT_EQ(membership->round_number(), 2);
  EXPECT_EQ(suspect(1, 1), "");
  EXPECT_EQ(suspect(1, 2), "to 1 2 3: look 2 of round 2");
  EXPECT_EQ(answer(3, {4, 5}, 2, 2), "");
  after(kInquiryLimit);
  EXPECT_EQ(ranks_of(judged), " 4 5") << "nothing of the round before is left";
}

// Seats are not in the order of the sessions.
TEST_F(InquiryTest, KnowsTheRanksOfEachNodeByItsSeat) {
  membership.emplace(RoundPolicy{.min_nodes = 2, .max_nodes = 2});
  const auto join = [&](SessionId session, int workers, int seat) {
    membership->joined(session,
                       {.node_id = fmt::format("n{}", session),
                        .local_world_size = workers,
                        .node_rank = seat,
                        .answers_looks = true},
                       {}, now);
  };
  join(1, 3, 1);
  join(2, 1, 0);
  suspect(1);
  EXPECT_EQ(answer(2, {0, 1, 2, 3}), "");
  EXPECT_EQ(answer(1, {0, 1, 2, 3}), "to 1 2: verdict 1 of round 1: 0 1 2 3 of 4");
}

// A leader that has taken the round over knows it from what its nodes say.
TEST_F(InquiryTest, GoesOnUnderTheNextLeader) {
  membership.emplace(RoundPolicy{.min_nodes = 2, .max_nodes = 2},
                     JobRecord{.round = 4, .others = 2});
  const auto resume = [&](SessionId session, int seat) {
    membership->resumed(session,
                        {.spec = {.node_id = fmt::format("n{}", session),
                                  .local_world_size = 2,
                                  .answers_looks = true},
                         .round = 4,
                         .seat = seat,
                         .node_count = 2,
                         .state = NodeState::kRunning},
                        {}, now);
  };
  resume(5, 1);
  EXPECT_EQ(suspect(5, 4), "") << "not all are back";
  resume(6, 0);
  EXPECT_EQ(suspect(5, 4), "to 5 6: look 1 of round 4");
  answer(6, {0, 1}, 1, 4);
  EXPECT_EQ(answer(5, {2, 3}, 1, 4), "to 5 6: verdict 1 of round 4: 0 1 2 3 of 4");
}

TEST_F(InquiryTest, BlamesNoMoreRanksThanAMessageHolds) {
  begin(1);
  Inquiry blaming{[](const std::vector<RankEvidence>& /*evidence*/, int /*world_size*/) {
    return Verdict{.ranks = std::vector<int>(kMostVerdictRanks + 1)};
  }};
  blaming.suspected(1, kRound, *membership, now);
  const auto told = blaming.tick(now + kInquiryLimit);
  ASSERT_TRUE(told.has_value());
  EXPECT_EQ(std::get<StandstillVerdict>(told->message).verdict.ranks.size(), kMostVerdictRanks);
}

}  // namespace
}  // namespace ddprun::rendezvous
