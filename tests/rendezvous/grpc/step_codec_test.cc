#include "rendezvous/grpc/step_codec.h"

#include <gtest/gtest.h>

#include <limits>

#include "tests/rendezvous/grpc/over_the_wire.h"

namespace ddprun::rendezvous {
namespace {

StepReport received(const StepReport& report) { return travelled<StepReport>(NodeMessage(report)); }

TEST(StepCodec, AReportArrivesAsItWasSaid) {
  const StepReport report{.round = 3,
                          .host = {.stolen = 1, .throttled = 2, .others = 3, .frequency = 4},
                          .samples = {{.rank = 5,
                                       .group = std::numeric_limits<std::uint64_t>::max(),
                                       .members = 8,
                                       .steps = 200,
                                       .calls = 3,
                                       .step_us = 51'000,
                                       .called_us = {20'000, 30'000, 40'000},
                                       .cpu_wait = 210,
                                       .spread = {50'000, 61'000, 40'000, 42'000, 45'000}},
                                      {.rank = 6, .members = 8, .steps = 9, .step_us = 7}}};
  EXPECT_EQ(received(report), report);
}

TEST(StepCodec, TheLongestReportFitsAMessage) {
  constexpr int kLeast = std::numeric_limits<int>::min();
  constexpr std::int64_t kFarthest = std::numeric_limits<std::int64_t>::min();
  const StepSample sample{.rank = kLeast,
                          .group = 1,
                          .members = kLeast,
                          .steps = kLeast,
                          .calls = kLeast,
                          .step_us = kFarthest,
                          .called_us = std::vector(2 * kMostSampledCalls, kFarthest),
                          .cpu_wait = kLeast,
                          .spread = {kFarthest, kFarthest, kFarthest, kFarthest, kFarthest}};
  const StepReport report{.round = kFarthest, .samples = {2 * kMostSampledRanks, sample}};
  EXPECT_LE(encode(NodeMessage(report)).ByteSizeLong(), kMaxUpBytes);
  const StepReport got = received(report);
  ASSERT_EQ(got.samples.size(), kMostSampledRanks);
  EXPECT_EQ(got.samples[0].called_us.size(), kMostSampledCalls);
  EXPECT_EQ(got.samples[0].cpu_wait, 0);
}

TEST(StepCodec, AVerdictArrivesAsItWasSaid) {
  const auto verdict = travelled_down<StragglerVerdict>(StragglerVerdict{2, {5, 6}, "rank 5"});
  EXPECT_EQ(verdict.round, 2);
  EXPECT_EQ(verdict.ranks, (std::vector<int>{5, 6}));
  EXPECT_EQ(verdict.sentence, "rank 5");
}

}  // namespace
}  // namespace ddprun::rendezvous
