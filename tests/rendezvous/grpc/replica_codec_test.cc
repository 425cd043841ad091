#include "rendezvous/grpc/replica_codec.h"

#include <gtest/gtest.h>

#include <limits>

#include "tests/rendezvous/grpc/over_the_wire.h"

namespace ddprun::rendezvous {
namespace {

constexpr std::uint64_t kLargest = std::numeric_limits<std::uint64_t>::max();
constexpr int kLargestRank = std::numeric_limits<int>::max();

ReplicaReport received(const ReplicaReport& report) {
  return travelled<ReplicaReport>(NodeMessage(report));
}

TEST(ReplicaCodec, AReportArrivesAsItWasSaid) {
  const ReplicaReport report{
      .round = 3,
      .question = 9,
      .sums = {{kLargest, 8, 1200, 17, {0, 1, 2}}, {1, 2, 1300, kLargest, {7}}},
      .tensors = {{.ranks = {4, 5}, .tensors = 300, .cells = {1, kLargest}, .names = {"a", "b"}}}};
  EXPECT_EQ(received(report), report);
}

TEST(ReplicaCodec, TheLongestReportFitsAMessage) {
  ReplicaReport report;
  report.sums.assign(2 * kMostReplicaSums, {kLargest, kLargestRank, kMostRounds, kLargest,
                                            std::vector<int>(100, kLargestRank)});
  EXPECT_LE(encode(NodeMessage(report)).ByteSizeLong(), kMaxUpBytes);
  EXPECT_EQ(received(report).sums.size(), kMostReplicaSums);
  ReplicaTensors tensors{.ranks = std::vector<int>(2 * kMostReplicaRanks, kLargestRank),
                         .tensors = kMostRounds,
                         .cells = std::vector<std::uint64_t>(2 * kMostReplicaCells, kLargest)};
  tensors.names.assign(2 * kMostReplicaNames, std::string(2 * kMostReplicaNameBytes, 'x'));
  report = {.tensors = {2, tensors}};
  EXPECT_LE(encode(NodeMessage(report)).ByteSizeLong(), kMaxUpBytes);
  const ReplicaReport got = received(report);
  ASSERT_EQ(got.tensors.size(), kMostReplicaTensors);
  EXPECT_EQ(got.tensors[0].ranks.size(), kMostReplicaRanks);
  EXPECT_EQ(got.tensors[0].cells.size(), kMostReplicaCells);
  EXPECT_EQ(got.tensors[0].names,
            std::vector(kMostReplicaNames, std::string(kMostReplicaNameBytes, 'x')));
}

TEST(ReplicaCodec, AReaderBoundsWhatAPeerDoesNot) {
  v4::FromNode message;
  for (std::size_t i = 0; i < 2 * kMostReplicaSums; ++i) {
    v4::ReplicaSum& sum = *message.mutable_replicas()->add_sums();
    sum.set_step(-5);
    for (int rank = 0; rank < 100; ++rank) sum.add_ranks(rank);
  }
  const auto got = std::get<ReplicaReport>(*decode(message));
  ASSERT_EQ(got.sums.size(), kMostReplicaSums);
  EXPECT_EQ(got.sums[0].step, 0);
  std::size_t ranks = 0;
  for (const ReplicaSum& sum : got.sums) ranks += sum.ranks.size();
  EXPECT_EQ(ranks, kMostReplicaRanks);
}

TEST(ReplicaCodec, QuestionAndVerdictArriveAsTheyWereSaid) {
  const auto question =
      travelled_down<ReplicaQuestion>(ReplicaQuestion{2, 5, kLargest, 700, 64, 4});
  EXPECT_EQ(question.round, 2);
  EXPECT_EQ(question.number, 5);
  EXPECT_EQ(question.set, kLargest);
  EXPECT_EQ(question.step, 700);
  EXPECT_EQ(question.first, 64);
  EXPECT_EQ(question.count, 4);
  const auto verdict = travelled_down<ReplicaVerdict>(ReplicaVerdict{2, 700, {5}, "rank 5"});
  EXPECT_EQ(verdict.round, 2);
  EXPECT_EQ(verdict.step, 700);
  EXPECT_EQ(verdict.ranks, std::vector<int>{5});
  EXPECT_EQ(verdict.sentence, "rank 5");
}

}  // namespace
}  // namespace ddprun::rendezvous
