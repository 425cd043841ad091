#include "rendezvous/core/replicas.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <set>
#include <string>

namespace ddprun::rendezvous {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr std::int64_t kReplicaRound = 1;
constexpr std::uint64_t kReplicaSet = 7;

using Hashes = std::vector<std::uint64_t>;

// Nodes of two workers each, as sessions 1, 2 and so on. Each rank has hashes of its tensors, and a
// node answers with them.
struct ReplicasTest : testing::Test {
  void begin(int nodes, std::size_t tensors, bool all_compare = true) {
    membership.emplace(
        RoundPolicy{.min_nodes = nodes, .max_nodes = nodes, .settings = {.last_call = seconds(0)}});
    for (int node = 1; node <= nodes; ++node) {
      NodeSpec spec{.node_id = fmt::format("n{}", node), .local_world_size = 2};
      spec.hostname = fmt::format("node-{}", static_cast<char>('a' + node - 1));
      spec.compares_replicas = all_compare || node != 1;
      membership->joined(static_cast<SessionId>(node), spec, {"10.0.0.1"}, now);
    }
    ASSERT_EQ(membership->phase(), Membership::Phase::kRunning);
    Hashes hashes(tensors);
    for (std::size_t at = 0; at < tensors; ++at) hashes[at] = 1000 + at * at;
    ranks.assign(2 * static_cast<std::size_t>(nodes), hashes);
  }
  std::uint64_t sum_of(int rank) const {
    const Hashes& hashes = ranks[static_cast<std::size_t>(rank)];
    return folded(hashes, 0, hashes.size());
  }
  // The node tells one check of both of its ranks.
  std::string tell(int node, std::int64_t step, std::int64_t round = kReplicaRound) {
    ReplicaReport report{.round = round};
    for (const int rank : {2 * node - 2, 2 * node - 1})
      report.sums.push_back({.set = kReplicaSet,
                             .members = members(),
                             .step = step,
                             .sum = sum_of(rank),
                             .ranks = {rank}});
    return hear(node, report);
  }
  std::string tell_all(std::int64_t step) {
    std::string said;
    for (int node = 1; node <= static_cast<int>(ranks.size()) / 2; ++node) said += tell(node, step);
    return said;
  }
  int members() const { return static_cast<int>(ranks.size()); }

  // Gives it to the comparison. Answers all questions that come of it, but those to `silent`.
  std::string hear(int node, const ReplicaReport& report) {
    return follow(comparison.reported(static_cast<SessionId>(node), report, *membership, now));
  }
  std::string follow(const std::optional<Announcement>& announcement) {
    if (!announcement) return "";
    if (const auto* verdict = std::get_if<ReplicaVerdict>(&announcement->message)) {
      last = *verdict;
      return fmt::format("to {}: {}\n", announcement->to.size(), verdict->sentence);
    }
    const auto question = std::get<ReplicaQuestion>(announcement->message);
    ++questions;
    std::string said;
    for (const SessionId to : announcement->to)
      if (to != silent) said += hear(static_cast<int>(to), answer(static_cast<int>(to), question));
    return said;
  }
  ReplicaReport answer(int node, const ReplicaQuestion& question) const {
    ReplicaReport report{.round = question.round, .question = question.number};
    for (const int rank : {2 * node - 2, 2 * node - 1}) {
      const Hashes hashes = lost.contains(rank) ? Hashes{} : ranks[static_cast<std::size_t>(rank)];
      ReplicaTensors tensors{.ranks = {rank},
                             .tensors = static_cast<std::int64_t>(hashes.size()),
                             .cells = replica_cells(hashes, question.first, question.count)};
      for (std::int64_t at = 0; question.count > 0 && question.count <= 4 && at < question.count;
           ++at)
        tensors.names.push_back(fmt::format("t{}", question.first + at));
      report.tensors.push_back(tensors);
    }
    return report;
  }
  Hashes& of(int rank) { return ranks[static_cast<std::size_t>(rank)]; }

  Time now = Time(std::chrono::hours(1));
  std::optional<Membership> membership;
  std::vector<Hashes> ranks;
  ReplicaComparison comparison;
  ReplicaVerdict last{};
  SessionId silent = 0;
  std::set<int> lost;  // ranks whose hashes are gone when they are asked
  int questions = 0;
};

TEST_F(ReplicasTest, EqualRanksAreQuiet) {
  begin(2, 10);
  for (std::int64_t step = 1; step <= 1000; ++step) EXPECT_EQ(tell_all(step), "");
  EXPECT_EQ(questions, 0);
  EXPECT_EQ(comparison.look_again_at(), Time::max());
}

TEST_F(ReplicasTest, NamesRankNodeTensorAndStep) {
  begin(2, 10);
  EXPECT_EQ(tell_all(100), "");
  of(3)[4] ^= 1;
  EXPECT_EQ(tell_all(200), "to 2: rank 3 on node-b: t4 since step 200; ranks 0-2 agree\n");
  EXPECT_EQ(last.ranks, std::vector<int>{3});
  EXPECT_EQ(last.step, 200);
  EXPECT_EQ(questions, 2);
}

TEST_F(ReplicasTest, FindsOneOfManyTensors) {
  for (const std::size_t at : {0U, 63U, 64U, 4095U, 99'999U}) {
    comparison = {};
    questions = 0;
    begin(2, 100'000);
    of(1)[at] += 1;
    EXPECT_EQ(tell_all(1),
              fmt::format("to 2: rank 1 on node-a: t{} since step 1; ranks 0, 2-3 agree\n", at));
    EXPECT_EQ(questions, 4);
  }
}

TEST_F(ReplicasTest, NamesWhatLiesBesideIt) {
  begin(2, 200);
  of(0)[70] = of(0)[71] = of(0)[74] = 1;
  EXPECT_EQ(tell_all(5), "to 2: rank 0 on node-a: t70 and t71 since step 5; ranks 1-3 agree\n");
}

TEST_F(ReplicasTest, WithoutAMajorityAllAreNamed) {
  begin(1, 3);
  of(1)[2] = 1;
  EXPECT_EQ(tell_all(8),
            "to 1: ranks 0-1 on node-a: t2 since step 8; no majority tells who is right\n");
}

TEST_F(ReplicasTest, RanksOfANodeMayAgreeOnTheError) {
  begin(3, 3);
  of(2)[0] = of(3)[0] = 1;
  EXPECT_EQ(tell_all(8),
            "to 3: ranks 2-3 on node-b, which agree with each other: t0 since step 8; "
            "ranks 0-1, 4-5 agree\n");
}

TEST_F(ReplicasTest, ADifferenceIsToldOnce) {
  begin(2, 3);
  of(0)[0] = 1;
  EXPECT_NE(tell_all(1), "");
  EXPECT_EQ(tell_all(2), "");
}

TEST_F(ReplicasTest, TheFirstStepIsNamedWhenNodesTellManyAtOnce) {
  begin(2, 3);
  for (std::int64_t step = 1; step <= 9; ++step) {
    if (step == 4) of(0)[1] = 1;
    EXPECT_EQ(tell(1, step), "");
  }
  of(0) = of(1);
  std::string said;
  ReplicaReport report{.round = kReplicaRound};
  for (std::int64_t step = 1; step <= 9; ++step)
    report.sums.push_back({kReplicaSet, members(), step, sum_of(2), {2, 3}});
  of(0)[1] = 1;
  EXPECT_EQ(hear(2, report), "to 2: rank 0 on node-a: t1 since step 4; ranks 1-3 agree\n");
}

TEST_F(ReplicasTest, ANodeThatDoesNotAnswerCostsTheName) {
  begin(2, 3);
  silent = 2;
  of(2)[1] = 1;
  EXPECT_EQ(tell_all(6), "");
  EXPECT_EQ(comparison.look_again_at(), now + kReplicaAnswerLimit);
  now += kReplicaAnswerLimit - milliseconds(1);
  EXPECT_EQ(follow(comparison.tick(now)), "");
  now += milliseconds(1);
  EXPECT_EQ(follow(comparison.tick(now)),
            "to 2: rank 2 on node-b: a tensor since step 6; ranks 0-1, 3 agree\n");
}

TEST_F(ReplicasTest, ARankThatHasLostItsHashesIsNotBlamed) {
  begin(4, 3);
  lost = {6};
  of(5)[1] = 1;
  EXPECT_EQ(tell_all(6), "to 4: rank 5 on node-c: t1 since step 6; ranks 0-4, 6-7 agree\n");
}

// The two that answer have no majority: the sum of the one that does not tells who is right.
TEST_F(ReplicasTest, ARankThatHasLostItsHashesStillCounts) {
  begin(2, 3);
  lost = {0, 1};
  of(2)[2] = 1;
  EXPECT_EQ(tell_all(6), "to 2: rank 2 on node-b: t2 since step 6; ranks 0-1, 3 agree\n");
}

TEST_F(ReplicasTest, AWrongRankThatHasLostItsHashesIsNamedByItsSum) {
  begin(2, 3);
  lost = {2};
  of(2)[2] = 1;
  EXPECT_EQ(tell_all(6), "to 2: rank 2 on node-b: a tensor since step 6; ranks 0-1, 3 agree\n");
}

TEST_F(ReplicasTest, NodesAreComparedOnlyIfAllTell) {
  begin(2, 3, false);
  of(2)[1] = 1;
  EXPECT_EQ(tell_all(6), "");
  EXPECT_EQ(questions, 0);
  EXPECT_EQ(comparison.take_node_without(), "node-a");
  EXPECT_EQ(comparison.take_node_without(), std::nullopt) << "it is said once";
}

TEST_F(ReplicasTest, NothingOutlivesItsRound) {
  begin(2, 3);
  of(0)[1] = 1;
  EXPECT_EQ(tell(1, 1), "");
  EXPECT_EQ(tell(2, 1, kReplicaRound + 1), "") << "of a round that does not run";
  membership->failed(1, kReplicaRound, {}, now);
  comparison.follow(*membership);
  EXPECT_EQ(tell(2, 1), "");
}

// A node speaks for its own ranks, of groups that can be, and of so many sets and checks.
TEST_F(ReplicasTest, WhatALiarSaysIsBounded) {
  begin(2, 3);
  ReplicaReport report{.round = kReplicaRound};
  report.sums.push_back({kReplicaSet, members(), 1, 5, {0, 1, 2, 3, -1, 1 << 30}});
  report.sums.push_back({kReplicaSet, 1 << 30, 1, 6, {0}});
  report.sums.push_back({kReplicaSet, -1, 1, 6, {0}});
  report.sums.push_back({kReplicaSet, 2, 1, 6, {3}});
  EXPECT_EQ(hear(2, report), "") << "a set has as many members as were told first";
  EXPECT_EQ(tell(1, 1),
            "to 2: ranks 0-3 on node-a, node-b: a tensor since step 1; no majority tells who "
            "is right\n")
      << "its own ranks' sums are as it says, and its tensors are not";
}

// No set has a place beyond kMostSetsOfRank for each rank.
TEST_F(ReplicasTest, SetsAreBounded) {
  begin(2, 3);
  ReplicaReport report{.round = kReplicaRound};
  for (std::uint64_t set = 100; set < 100 + kMostSetsOfRank * 4; ++set)
    report.sums.push_back({set, members(), 1, 5, {2}});
  EXPECT_EQ(hear(2, report), "");
  of(0)[1] = 1;
  EXPECT_EQ(tell_all(1), "") << "there is no place for another set";
}

// The oldest open check is forgotten: its difference is not found, and that of the next one is.
TEST_F(ReplicasTest, OpenChecksOfASetAreBounded) {
  begin(2, 3);
  for (std::int64_t step = 1; step <= static_cast<std::int64_t>(kMostOpenChecks) + 1; ++step)
    EXPECT_EQ(tell(1, step), "");
  of(2)[1] = 1;
  EXPECT_EQ(tell(2, 1), "");
  EXPECT_EQ(tell(2, 2), "to 2: rank 2 on node-b: t1 since step 2; ranks 0-1, 3 agree\n");
}

}  // namespace
}  // namespace ddprun::rendezvous
