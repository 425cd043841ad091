#include "rendezvous/grpc/evidence_codec.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <limits>

#include "tests/rendezvous/grpc/over_the_wire.h"

namespace ddprun::rendezvous {
namespace {

constexpr std::size_t kMaxUp = kMaxUpBytes;
const std::string kTooLong(kMostEvidenceText + 1, 'x');
const std::string kLongest(kMostEvidenceText, 'x');

GroupPosition group(const std::string& name) {
  return {.name = name,
          .ranks = {0, 3},
          .enqueued = 51,
          .completed = 50,
          .number = 51,
          .operation = "all_reduce",
          .shapes = "[[1000, 3]]"};
}

RankEvidence rank_evidence(int rank) {
  return {.rank = rank,
          .hostname = "n1",
          .activity = Activity::kInKernel,
          .detail = "folio_wait_bit",
          .place = "train (hang.py:18)",
          .steps = 50,
          .groups = {group("0"), group("1")}};
}

// As much as a rank can say.
RankEvidence longest_evidence(int rank) {
  RankEvidence evidence = rank_evidence(rank);
  evidence.hostname = evidence.detail = evidence.place = kTooLong;
  evidence.steps = std::numeric_limits<std::int64_t>::max();
  GroupPosition longest{.name = kTooLong, .operation = kTooLong, .shapes = kTooLong};
  longest.ranks.assign(kMostGroupRanks, std::numeric_limits<int>::max());
  longest.enqueued = longest.completed = longest.number = evidence.steps;
  evidence.groups.assign(2 * kMostGroups, longest);
  return evidence;
}

// Through the bytes, as on the wire.
RankEvidence travelled(const RankEvidence& evidence) {
  return travelled<Evidence>(Evidence{.ranks = {evidence}}).ranks.at(0);
}

TEST(EvidenceCodec, CarriesTheMessagesOfANode) {
  EXPECT_EQ(travelled<Suspicion>(Suspicion{7}).round, 7);
  const Evidence evidence{.round = 7, .inquiry = 2, .ranks = {rank_evidence(3), {.rank = 4}}};
  const auto got = travelled<Evidence>(evidence);
  EXPECT_EQ(got.round, 7);
  EXPECT_EQ(got.inquiry, 2);
  EXPECT_EQ(got.ranks, evidence.ranks);
  for (int activity = 0; activity <= static_cast<int>(Activity::kEnded); ++activity)
    EXPECT_EQ(travelled({.activity = Activity{activity}}).activity, Activity{activity});
}

TEST(EvidenceCodec, CarriesTheMessagesOfTheHost) {
  const Look look = travelled_down<Look>(Look{7, 2});
  EXPECT_EQ(look.round, 7);
  EXPECT_EQ(look.inquiry, 2);
  for (int kind = 0; kind <= static_cast<int>(VerdictKind::kAllWait); ++kind) {
    const Verdict verdict{.kind = VerdictKind{kind},
                          .is_certain = kind % 2 == 0,
                          .ranks = {2, 1000},
                          .rank_to_end = kind - 1,
                          .sentence = "rank 2 does nothing"};
    const auto got = travelled_down<StandstillVerdict>(StandstillVerdict{7, 2, verdict});
    EXPECT_EQ(got.verdict, verdict);
    EXPECT_EQ(got.round, 7);
    EXPECT_EQ(got.inquiry, 2);
  }
}

TEST(EvidenceCodec, CutsLongTexts) {
  RankEvidence wordy = rank_evidence(0);
  wordy.hostname = wordy.detail = wordy.place = kTooLong;
  wordy.groups[0].name = wordy.groups[0].operation = wordy.groups[0].shapes = kTooLong;
  const RankEvidence got = travelled(wordy);
  for (const std::string* const text : {&got.hostname, &got.detail, &got.place, &got.groups[0].name,
                                        &got.groups[0].operation, &got.groups[0].shapes})
    EXPECT_EQ(*text, kLongest);
  const StandstillVerdict verdict{1, 1, {.sentence = std::string(kMaxTextBytes + 1, 'x')}};
  EXPECT_EQ(travelled_down<StandstillVerdict>(verdict).verdict.sentence.size(), kMaxTextBytes);
}

TEST(EvidenceCodec, LeavesOutRanksOfAGroupThatAreTooMany) {
  RankEvidence evidence = rank_evidence(0);
  evidence.groups[0].ranks.assign(kMostGroupRanks, 1);
  EXPECT_EQ(travelled(evidence), evidence);
  evidence.groups[0].ranks.assign(kMostGroupRanks + 1, 1);
  EXPECT_TRUE(travelled(evidence).groups[0].ranks.empty());
}

TEST(EvidenceCodec, KeepsTheFirstGroups) {
  RankEvidence evidence{.groups = {}};
  for (std::size_t i = 0; i < kMostGroups; ++i)
    evidence.groups.push_back(group(fmt::format("{}", i)));
  EXPECT_EQ(travelled(evidence), evidence);
  RankEvidence more = evidence;
  more.groups.push_back(group("one more"));
  EXPECT_EQ(travelled(more), evidence);
  const RankEvidence long_one = travelled(longest_evidence(0));
  EXPECT_EQ(long_one.groups.size(), 1U);
  EXPECT_EQ(long_one.place, kLongest);
}

// A peer that keeps no limit loses its session no more than any other.
TEST(EvidenceCodec, BoundsWhatAPeerSends) {
  v4::Evidence message;
  for (int count = 0; count < 3; ++count) {
    v4::RankEvidence& one = *message.add_ranks();
    one.set_activity(count == 0 ? -1 : static_cast<int>(Activity::kEnded) + count);
    one.set_detail(kTooLong);
    one.set_steps(-1);
    for (int i = 0; i < 10; ++i) {
      v4::GroupPosition& position = *one.add_groups();
      position.set_name(kTooLong + kTooLong);
      position.set_enqueued(std::numeric_limits<std::int64_t>::max());
      position.set_completed(std::numeric_limits<std::int64_t>::min());
      position.set_shapes(kTooLong);
      for (std::size_t rank = 0; rank <= kMostGroupRanks; ++rank) position.add_ranks(-1);
    }
  }
  for (const RankEvidence& got : decode_evidence(message).ranks) {
    EXPECT_EQ(got.activity, Activity::kUnknown);
    EXPECT_EQ(got.detail, kLongest);
    EXPECT_EQ(got.steps, 0);
    ASSERT_EQ(got.groups.size(), kMostGroups);
    EXPECT_EQ(got.groups[0].name, kLongest);
    EXPECT_EQ(got.groups[0].enqueued, kMostRounds);
    EXPECT_EQ(got.groups[0].completed, 0);
    EXPECT_TRUE(got.groups[0].ranks.empty());
  }
  v4::StandstillVerdict verdict;
  verdict.set_kind(static_cast<int>(VerdictKind::kAllWait) + 1);
  verdict.set_sentence(std::string(2 * kMaxTextBytes, 'x'));
  for (std::size_t rank = 0; rank <= kMostVerdictRanks; ++rank) verdict.add_ranks(1);
  const Verdict got = decode_verdict(verdict).verdict;
  EXPECT_EQ(got.kind, VerdictKind::kNone) << "a newer host";
  EXPECT_EQ(got.sentence.size(), kMaxTextBytes);
  EXPECT_EQ(got.ranks.size(), kMostVerdictRanks);
}

TEST(EvidenceCodec, NoMessageIsLongerThanAPeerTakes) {
  EXPECT_LE(encode_evidence({.ranks = {longest_evidence(0)}}).ranks(0).ByteSizeLong(),
            kMaxEvidenceBytes);
  Verdict verdict{.sentence = std::string(2 * kMaxTextBytes, 'x')};
  verdict.ranks.assign(2 * kMostVerdictRanks, std::numeric_limits<int>::max());
  EXPECT_LE(
      encode(HostMessage(StandstillVerdict{kMostRounds, kMostRounds, verdict})).ByteSizeLong(),
      static_cast<std::size_t>(kMaxDownBytes));
}

// All ranks are there, in few messages, whatever they say.
TEST(EvidenceCodec, SplitsTheEvidenceOfANodeIntoMessages) {
  for (const int ranks : {1, 8, 100, 180, 1000, 4096}) {
    Evidence evidence{.round = kMostRounds, .inquiry = kMostRounds, .ranks = {}};
    for (int rank = 0; rank < ranks; ++rank) evidence.ranks.push_back(longest_evidence(rank));
    const std::vector<Evidence> messages = split(evidence);
    EXPECT_LE(messages.size(), kMaxEvidenceMessages) << ranks;
    int next = 0;
    for (const Evidence& one : messages) {
      EXPECT_EQ(one.round, kMostRounds);
      EXPECT_EQ(one.inquiry, kMostRounds);
      EXPECT_LE(encode(NodeMessage(one)).ByteSizeLong(), kMaxUp) << ranks;
      for (const RankEvidence& got : travelled<Evidence>(one).ranks) {
        EXPECT_EQ(got.rank, next++);
        EXPECT_EQ(got.activity, Activity::kInKernel);
      }
    }
    EXPECT_EQ(next, ranks);
  }
  EXPECT_TRUE(split({}).empty());
}

TEST(EvidenceCodec, OneMessageHoldsWhatItCan) {
  Evidence evidence;
  for (int rank = 0; rank < 8; ++rank) evidence.ranks.push_back(rank_evidence(rank));
  const auto messages = split(evidence);
  ASSERT_EQ(messages.size(), 1U);
  EXPECT_EQ(messages[0].ranks, evidence.ranks);
}

TEST(EvidenceCodec, AnOlderPeerSaysThatItKnowsNothingOfIt) {
  const auto join = std::get<NodeSpec>(*decode(encode(NodeMessage(NodeSpec{.node_id = "n"}))));
  EXPECT_FALSE(join.answers_looks);
  v4::ToNode lease;
  lease.mutable_lease()->set_length_ms(1);
  lease.mutable_lease()->set_heartbeat_every_ms(1);
  EXPECT_FALSE(std::get<LeaseGrant>(*decode(lease)).takes_evidence);
  lease.mutable_lease()->set_takes_evidence(true);
  EXPECT_TRUE(std::get<LeaseGrant>(*decode(lease)).takes_evidence);
}

}  // namespace
}  // namespace ddprun::rendezvous
