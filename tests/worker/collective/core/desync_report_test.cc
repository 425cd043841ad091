#include "worker/collective/core/desync_report.h"

#include <gtest/gtest.h>

#include <map>

namespace ddprun::worker {
namespace {

using State = RankReport::State;

// A rank's ring, and what it says of it.
class Teller {
 public:
  explicit Teller(int rank) : rank_(rank) {}

  Teller& does(OperationKind kind, std::uint64_t bytes = 0, int peer = -1) {
    const auto number = ring_->begin(kind, bytes);
    ring_->end(number);
    peer_ = peer;
    return *this;
  }
  void does_parts(OperationKind kind, std::uint64_t bytes, std::uint64_t parts) {
    ring_->begin(kind, bytes, Dtype::kFloat32, {}, parts);
  }
  RankReport runs() const { return report_of(*ring_, rank_); }
  RankReport waits(std::uint32_t look = 1) const {
    RankReport report = runs();
    report.state = State::kWaits;
    report.look = look;
    report.peer = peer_;
    report.waits_in = *ring_->last();
    return report;
  }
  RankReport ended() const {
    RankReport report = runs();
    report.state = State::kEnded;
    return report;
  }

 private:
  int rank_;
  int peer_ = -1;
  std::unique_ptr<OperationRing> ring_ = std::make_unique<OperationRing>();
};

TEST(DesyncReport, NamesBothRanksThatDoDifferentThings) {
  Teller zero(0);
  Teller one(1);
  zero.does(OperationKind::kSum, 64).does(OperationKind::kBarrier);
  one.does(OperationKind::kSum, 64).does(OperationKind::kSum, 4096);
  const std::string expected =
      "rank 0 is in barrier (operation 2), rank 1 in sum of 4096 bytes (operation 2): they do "
      "different things, and none of them can go on";
  EXPECT_EQ(desync_report(zero.waits(), {one.waits()}, {}), expected);
  EXPECT_EQ(desync_report(one.waits(), {zero.waits()}, {}), expected);
  EXPECT_EQ(desync_report(one.waits(), {zero.runs()}, {}), expected) << "it need not wait";
}

TEST(DesyncReport, FindsTheFirstOperationThatIsNotTheSame) {
  Teller zero(0);
  Teller one(1);
  zero.does(OperationKind::kSum, 64).does(OperationKind::kSum, 4).does(OperationKind::kSum, 8);
  one.does(OperationKind::kSum, 64)
      .does(OperationKind::kSum, 8)
      .does(OperationKind::kSum, 4)
      .does(OperationKind::kBarrier);
  EXPECT_EQ(
      desync_report(zero.waits(), {one.waits()}, {}),
      "rank 0 is in sum of 4 bytes (operation 2), rank 1 in sum of 8 bytes (operation 2): they "
      "do different things, and none of them can go on");
}

TEST(DesyncReport, LetsRanksBeLate) {
  Teller zero(0);
  Teller one(1);
  zero.does(OperationKind::kSum, 64).does(OperationKind::kBarrier);
  EXPECT_EQ(desync_report(zero.waits(), {one.runs()}, {}), std::nullopt)
      << "it has done nothing yet";
  one.does(OperationKind::kSum, 64);
  EXPECT_EQ(desync_report(zero.waits(2), {one.waits(2)}, {one.waits(1)}), std::nullopt)
      << "its sum is still on its way";
  one.does(OperationKind::kBarrier).does(OperationKind::kSum, 8);
  EXPECT_EQ(desync_report(zero.waits(), {one.waits()}, {}), std::nullopt) << "it is ahead";
}

TEST(DesyncReport, FindsUnlikePartsOfOneCollective) {
  Teller zero(0);
  Teller one(1);
  Teller two(2);
  zero.does_parts(OperationKind::kReduceScatter, 64, 0x1'0000'00a1);
  one.does_parts(OperationKind::kReduceScatter, 64, 0x1'0000'00b2);
  two.does_parts(OperationKind::kReduceScatter, 64, 0x1'0000'00a1);
  EXPECT_EQ(desync_report(zero.waits(), {two.waits()}, {}), std::nullopt);
  EXPECT_EQ(desync_report(zero.waits(), {one.waits()}, {}),
            "rank 0 is in reduce-scatter of 64 bytes in parts 000000a1 (operation 1), rank 1 in "
            "reduce-scatter of 64 bytes in parts 000000b2 (operation 1): they do different things, "
            "and none of them can go on");
  const auto read = report_from(0, to_text(zero.waits()));
  ASSERT_TRUE(read);
  EXPECT_EQ(read->waits_in.parts, 0x1'0000'00a1U);
  EXPECT_EQ(read->waits_in.kind, OperationKind::kReduceScatter);
}

TEST(DesyncReport, AllowsGathersOfUnequalLength) {
  Teller zero(0);
  Teller one(1);
  zero.does(OperationKind::kGather, 64);
  one.does(OperationKind::kGather, 8);
  EXPECT_EQ(desync_report(zero.waits(), {one.waits()}, {}), std::nullopt);
}

TEST(DesyncReport, NamesARankThatHasEnded) {
  Teller zero(0);
  Teller one(1);
  zero.does(OperationKind::kSum, 64).does(OperationKind::kSum, 64);
  one.does(OperationKind::kSum, 64);
  EXPECT_EQ(desync_report(zero.waits(), {one.ended()}, {}),
            "rank 0 waits in sum of 64 bytes (operation 2), and rank 1 has ended: its last "
            "operation was sum of 64 bytes (operation 1)");
  one.does(OperationKind::kSum, 64);
  EXPECT_EQ(desync_report(zero.waits(), {one.ended()}, {}), std::nullopt) << "it has done its part";
}

// A transfer has no number that all ranks share, so both must be seen to wait.
TEST(DesyncReport, FindsATransferWhosePeerWaitsInSomethingElse) {
  Teller zero(0);
  Teller one(1);
  zero.does(OperationKind::kSend, 64, 1);
  one.does(OperationKind::kBarrier);
  const std::string expected =
      "rank 0 is in send of 64 bytes (operation 1), rank 1 in barrier (operation 1): they do "
      "different things, and none of them can go on";
  EXPECT_EQ(desync_report(zero.waits(1), {one.waits(1)}, {}), std::nullopt)
      << "one look is no proof";
  EXPECT_EQ(desync_report(zero.waits(2), {one.waits(1)}, {one.waits(1)}), std::nullopt)
      << "it may wait no longer";
  EXPECT_EQ(desync_report(zero.waits(2), {one.waits(2)}, {one.waits(1)}), expected);
  EXPECT_EQ(desync_report(one.waits(2), {zero.waits(2)}, {zero.waits(1)}), expected);
}

TEST(DesyncReport, LetsTransfersMeet) {
  Teller zero(0);
  Teller one(1);
  Teller two(2);
  zero.does(OperationKind::kSend, 64, 1);
  one.does(OperationKind::kReceive, 64, 0);
  two.does(OperationKind::kReceive, 64, 0);
  EXPECT_EQ(
      desync_report(zero.waits(2), {one.waits(2), two.waits(2)}, {one.waits(1), two.waits(1)}),
      std::nullopt);
  Teller sends_too(1);
  sends_too.does(OperationKind::kSend, 64, 0);
  EXPECT_NE(desync_report(zero.waits(2), {sends_too.waits(2)}, {sends_too.waits(1)}), std::nullopt);
}

TEST(DesyncReport, SaysWhoWasNotSeen) {
  Teller zero(0);
  Teller one(1);
  zero.does(OperationKind::kSum, 64).does(OperationKind::kBarrier);
  one.does(OperationKind::kSum, 64);
  EXPECT_EQ(
      absent_from(zero.waits(), {one.runs(), Teller(2).runs()}),
      "rank 1 was not seen in it (last in sum of 64 bytes (operation 1)), rank 2 was not seen "
      "in it (nor in any other)");
  one.does(OperationKind::kBarrier);
  EXPECT_EQ(absent_from(zero.waits(), {one.waits()}), "");
}

TEST(DesyncReport, TravelsAsText) {
  Teller zero(0);
  for (std::uint64_t i = 1; i <= 40; ++i) zero.does(OperationKind::kSum, i);
  const RankReport report = zero.does(OperationKind::kReceive, 7, 3).waits(9);
  const std::string text = to_text(report);
  EXPECT_LT(text.size(), 1024U);
  const auto read = report_from(0, text);
  ASSERT_TRUE(read);
  EXPECT_EQ(read->state, State::kWaits);
  EXPECT_EQ(read->look, 9U);
  EXPECT_EQ(read->peer, 3);
  EXPECT_EQ(describe(read->waits_in), "receive of 7 bytes (operation 41)");
  ASSERT_EQ(read->last.size(), kReportedOperations);
  EXPECT_EQ(read->last.front().bytes, 25U);
  EXPECT_EQ(read->latest(), 40U);
  for (std::size_t length = 0; length + 3 < text.size(); ++length)
    EXPECT_FALSE(report_from(0, text.substr(0, length))) << length;
  for (const char* wrong : {"", "-", "2 0 0 0 0", "1 7 1 -1 0 0 0 0 0 0", "1 1 1 -1 99 1 1 0 0 4"})
    EXPECT_FALSE(report_from(0, wrong)) << wrong;
}

class Board final : public DesyncBoard {
 public:
  struct Texts {
    std::map<int, std::string> by_rank;
    bool broken = false;
    int reads = 0;
  };
  Board(Texts& texts, int rank) : texts_(texts), rank_(rank) {}
  Result<void> post(std::string_view text) override {
    if (texts_.broken) return Error(ErrorCode::kUnavailable, "gone");
    texts_.by_rank[rank_] = text;
    return {};
  }
  Result<std::vector<std::string>> read(std::span<const int> ranks) override {
    ++texts_.reads;
    std::vector<std::string> read;
    for (const int rank : ranks) read.push_back(texts_.by_rank[rank]);
    return read;
  }

 private:
  Texts& texts_;
  int rank_;
};

TEST(DesyncLooks, ComeAfterAWhileAndThenMoreRarely) {
  Board::Texts texts;
  DesyncLooks looks(std::make_unique<Board>(texts, 0), 0, 2);
  const auto since = DesyncLooks::Clock::now() - std::chrono::hours(1);
  EXPECT_FALSE(looks.due(1, since, since + std::chrono::milliseconds(499)));
  EXPECT_TRUE(looks.due(1, since, since + std::chrono::milliseconds(500)));
  Teller zero(0);
  zero.does(OperationKind::kBarrier);
  EXPECT_EQ(looks.look(zero.waits()), std::nullopt);
  const auto now = DesyncLooks::Clock::now();
  EXPECT_FALSE(looks.due(1, since, now));
  EXPECT_TRUE(looks.due(1, since, now + std::chrono::milliseconds(200)));
  EXPECT_FALSE(looks.due(2, now, now)) << "another operation begins anew";
}

TEST(DesyncLooks, TellThatARankWaitsNoLonger) {
  Board::Texts texts;
  DesyncLooks looks(std::make_unique<Board>(texts, 0), 0, 2);
  Teller zero(0);
  zero.does(OperationKind::kBarrier);
  looks.go_on(zero.runs());
  EXPECT_TRUE(texts.by_rank.empty()) << "nobody thinks that it waits";
  looks.look(zero.waits());
  EXPECT_EQ(report_from(0, texts.by_rank[0])->state, State::kWaits);
  looks.go_on(zero.runs());
  EXPECT_EQ(report_from(0, texts.by_rank[0])->state, State::kRuns);
  looks.leave(zero.runs());
  EXPECT_EQ(report_from(0, texts.by_rank[0])->state, State::kEnded);
}

TEST(DesyncLooks, EndWithTheBoard) {
  Board::Texts texts{.by_rank = {}, .broken = true};
  DesyncLooks looks(std::make_unique<Board>(texts, 0), 0, 2);
  Teller zero(0);
  zero.does(OperationKind::kBarrier);
  const auto since = DesyncLooks::Clock::now() - std::chrono::hours(1);
  EXPECT_TRUE(looks.due(1, since, DesyncLooks::Clock::now()));
  EXPECT_EQ(looks.look(zero.waits()), std::nullopt);
  EXPECT_FALSE(looks.due(1, since, DesyncLooks::Clock::now()));
  EXPECT_EQ(looks.absent(zero.waits()), "");
  EXPECT_EQ(texts.reads, 0);
}

}  // namespace
}  // namespace ddprun::worker
