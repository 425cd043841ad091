#include "agent/replicas/replica_reports.h"

#include <gtest/gtest.h>

#include <numeric>

namespace ddprun::agent {
namespace {

using rendezvous::ReplicaQuestion;
using rendezvous::ReplicaReport;

constexpr std::uint64_t kSet = 7;

RankCheck check(int rank, std::int64_t step, std::uint64_t sum) {
  return {.rank = rank, .set = kSet, .members = 4, .check = {step, sum}};
}

TEST(ReplicaReports, RanksThatHaveTheSameAreToldTogether) {
  const auto reports =
      replica_reports(3, {check(4, 200, 9), check(4, 100, 5), check(5, 100, 5), check(5, 200, 8)});
  ASSERT_EQ(reports.size(), 1U);
  EXPECT_EQ(
      reports[0],
      (ReplicaReport{
          .round = 3,
          .sums = {{kSet, 4, 100, 5, {4, 5}}, {kSet, 4, 200, 8, {5}}, {kSet, 4, 200, 9, {4}}}}));
  EXPECT_TRUE(replica_reports(3, {}).empty());
}

TEST(ReplicaReports, AreCutIntoMessages) {
  std::vector<RankCheck> checks;
  for (int rank = 0; rank < 100; ++rank)
    for (std::int64_t step = 1; step <= 70; ++step) checks.push_back(check(rank, step, 1));
  const auto reports = replica_reports(1, checks);
  std::size_t sums = 0;
  for (const ReplicaReport& report : reports) {
    std::size_t ranks = 0;
    for (const auto& sum : report.sums) ranks += sum.ranks.size();
    EXPECT_LE(ranks, rendezvous::kMostReplicaRanks);
    EXPECT_LE(report.sums.size(), rendezvous::kMostReplicaSums);
    sums += report.sums.size();
  }
  EXPECT_EQ(sums, 70U);
}

TEST(ReplicaReports, AnswersHaveCellsAndTheNamesOfFew) {
  std::vector<std::uint64_t> hashes(200);
  std::iota(hashes.begin(), hashes.end(), 0);
  const ReplicaHashes all{kSet, hashes, std::vector<std::string>(200, "x")};
  ReplicaQuestion question{.round = 1, .number = 6, .set = kSet, .step = 9};
  auto answers = replica_answers(question, {{0, all}, {1, all}, {2, {}}});
  ASSERT_EQ(answers.size(), 2U);
  EXPECT_EQ(answers[0].question, 6);
  EXPECT_EQ(answers[0].tensors[0].ranks, (std::vector<int>{0, 1}));
  EXPECT_EQ(answers[0].tensors[0].tensors, 200);
  EXPECT_EQ(answers[0].tensors[0].cells.size(), 50U) << "of four tensors each";
  EXPECT_TRUE(answers[0].tensors[0].names.empty());
  EXPECT_TRUE(answers[1].tensors[0].cells.empty()) << "its check is gone";
  question.first = 198;
  question.count = 4;
  answers = replica_answers(question, {{0, all}});
  EXPECT_EQ(answers[0].tensors[0].cells, (std::vector<std::uint64_t>{198, 199}));
  EXPECT_EQ(answers[0].tensors[0].names, (std::vector<std::string>{"x", "x"}));
}

TEST(ReplicaReports, AQuestionBeyondTheEndGetsNothing) {
  const ReplicaHashes two{kSet, {1, 2}, {"a", "b"}};
  for (const std::int64_t first : {std::int64_t{2}, std::int64_t{1} << 62}) {
    const auto answers = replica_answers({.first = first, .count = 4}, {{0, two}});
    EXPECT_TRUE(answers[0].tensors[0].cells.empty() && answers[0].tensors[0].names.empty());
  }
}

}  // namespace
}  // namespace ddprun::agent
