// The conclusion from the reports of all ranks, and Join's calls of its joinables.
#include "worker/training/join/join_iteration.h"

#include <ddprun/join.h>
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/worker/training/data_parallel/counting_collective.h"

namespace ddprun::worker {
namespace {

using Blob = std::vector<std::byte>;

Blob blob_of(const JoinReport& report) {
  const auto bytes = std::as_bytes(std::span(&report, 1));
  return {bytes.begin(), bytes.end()};
}

JoinIteration round_of(const std::vector<JoinReport>& reports) {
  std::vector<Blob> blobs;
  for (const JoinReport& report : reports) blobs.push_back(blob_of(report));
  return read_reports(blobs);
}

constexpr JoinReport kTrains{.active = true, .records = true, .synchronises = true};
constexpr JoinReport kEvaluates{.active = true};
constexpr JoinReport kJoined{};
constexpr JoinReport kCameLast{.last = true};

TEST(JoinIteration, TakesBuffersFromTheHighestRankThatIsActive) {
  const JoinIteration round = round_of({kTrains, kTrains, kJoined});
  EXPECT_EQ(round.ranks, 3);
  EXPECT_EQ(round.active, 2);
  EXPECT_EQ(round.source, 1);
  EXPECT_TRUE(round.records && round.synchronises);
  EXPECT_EQ(round.joined, std::vector<int>{2});
}

TEST(JoinIteration, TakesTheLastWeightsFromTheHighestRankThatCameLast) {
  EXPECT_EQ(round_of({kCameLast, kCameLast, kJoined, kJoined}).source, 1);
  EXPECT_EQ(round_of({kCameLast, kJoined}).source, 0);
  EXPECT_EQ(round_of({kCameLast, kJoined}).active, 0);
}

TEST(JoinIteration, ShadowsWhatAnActiveRankDoes) {
  EXPECT_FALSE(round_of({kEvaluates, kJoined}).records);
  EXPECT_FALSE(round_of({kEvaluates, kJoined}).synchronises);
  const JoinReport accumulates{.active = true, .records = true};
  EXPECT_TRUE(round_of({accumulates, kJoined}).records);
  EXPECT_FALSE(round_of({accumulates, kJoined}).synchronises);
}

TEST(JoinIteration, RefusesWhatIsNoReport) {
  const std::vector<Blob> blobs{blob_of(kTrains), Blob(1)};
  EXPECT_THROW(read_reports(blobs), std::invalid_argument);
}

TEST(JoinIteration, EndsEarlyInPyTorchsWords) {
  EXPECT_EQ(early_end(round_of({kTrains, kTrains}), 0, true), "");
  EXPECT_EQ(early_end(round_of({kCameLast, kJoined}), 0, false), "");
  const JoinIteration uneven = round_of({kJoined, kTrains, kJoined});
  EXPECT_EQ(early_end(uneven, 2, false), "Rank 2 exhausted all inputs.");
  EXPECT_EQ(early_end(uneven, 1, true),
            "Detected at least one rank that exhausted inputs. Throwing across all ranks. No more "
            "batches: rank 0, 2");
}

// Writes down what it is asked.
class Recorder final : public Joinable {
 public:
  Recorder(Collective& ranks, std::string& calls) : ranks_(ranks), calls_(calls) {}
  Collective& join_ranks() override { return ranks_; }
  void begin_join(JoinContext& /*context*/, bool leads) override {
    if (refuses) throw std::invalid_argument("not this one");
    calls_ += leads ? "lead " : "begin ";
  }
  void shadow(const JoinIteration& round) override {
    calls_ += "shadow" + std::to_string(round.active) + " ";
  }
  void settle(int source) override { calls_ += "settle" + std::to_string(source) + " "; }
  void end_join() noexcept override { calls_ += "end "; }
  bool refuses = false;

 private:
  Collective& ranks_;
  std::string& calls_;
};

// Rank 0 of two; the other one's reports are given, one for each meet().
class ScriptedPeer final : public PassingCollective {
 public:
  ScriptedPeer(Collective& alone, std::vector<JoinReport> reports)
      : PassingCollective(alone), reports_(std::move(reports)) {}
  std::vector<Blob> all_gather_bytes(std::span<const std::byte> mine) override {
    return {Blob(mine.begin(), mine.end()), blob_of(reports_.at(next_++))};
  }

 private:
  std::vector<JoinReport> reports_;
  std::size_t next_ = 0;
};

TEST(Join, ShadowsInTheGivenOrderUntilNobodyIsActive) {
  const auto alone = make_alone_collective();
  ScriptedPeer ranks(*alone, {kTrains, kTrains, kCameLast});
  std::string calls;
  Recorder first(ranks, calls);
  Recorder second(ranks, calls);
  { const auto join = Join(first, second); }
  EXPECT_EQ(calls, "lead begin shadow1 shadow1 shadow1 shadow1 settle1 settle1 end end ");
}

TEST(Join, DoesNothingAfterAnExceptionOrWhereItIsNotEnabled) {
  const auto alone = make_alone_collective();
  ScriptedPeer ranks(*alone, {});
  std::string calls;
  Recorder only(ranks, calls);
  try {
    const auto join = Join(only);
    throw std::runtime_error("of the program");
  } catch (const std::runtime_error&) {
  }
  EXPECT_EQ(calls, "lead end ");
  { const auto join = Join({.enable = false}, only); }
  EXPECT_EQ(calls, "lead end ");
}

TEST(Join, ThrowsWhereThisRankIsTheFirstToEndAndAllShallThrow) {
  const auto alone = make_alone_collective();
  ScriptedPeer ranks(*alone, {kTrains});
  std::string calls;
  Recorder only(ranks, calls);
  try {
    const auto join = Join({.throw_on_early_termination = true}, only);
    calls += "train ";
  } catch (const std::runtime_error& error) {
    calls += error.what();
  }
  EXPECT_EQ(calls, "lead train end Rank 0 exhausted all inputs.");
}

TEST(Join, LeavesThoseThatHadBegunWhereOneRefuses) {
  const auto alone = make_alone_collective();
  ScriptedPeer ranks(*alone, {});
  std::string calls;
  Recorder first(ranks, calls);
  Recorder second(ranks, calls);
  second.refuses = true;
  EXPECT_THROW(Join(first, second), std::invalid_argument);
  EXPECT_EQ(calls, "lead end ");
  const auto other = make_alone_collective();
  Recorder peer(*other, calls);
  EXPECT_THROW(Join(first, peer), std::invalid_argument);
}

}  // namespace
}  // namespace ddprun::worker
