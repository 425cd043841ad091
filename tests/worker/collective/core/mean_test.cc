#include <ddprun/metrics.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>

#include "tests/worker/scripted_ranks.h"

namespace ddprun::worker {
namespace {

TEST(Mean, WeighsSamplesAndNotRanks) {
  ScriptedRanks ranks({blob_of(std::array{0.0, 1.0})});  // the other rank: one sample, wrong
  Mean mine;
  mine.add(3.0, 3);  // three samples here, all right
  EXPECT_EQ(mine.over(ranks), 0.75) << "the mean of the means would be 0.5";
}

TEST(Mean, GivesARankWithoutSamplesNoWeight) {
  ScriptedRanks ranks({blob_of(std::array{6.0, 4.0})});
  EXPECT_EQ(Mean().over(ranks), 1.5);
}

TEST(Mean, IsNoNumberWithoutAnySample) {
  ScriptedRanks ranks({blob_of(std::array{0.0, 0.0})});
  EXPECT_TRUE(std::isnan(Mean().over(ranks)));
}

TEST(Mean, TravelsWithOthers) {
  ScriptedRanks ranks({blob_of(std::array{1.0, 1.0, 10.0, 2.0})});
  Mean loss;
  loss.add(3.0);
  Mean accuracy;
  accuracy.add(2.0, 4.0);
  EXPECT_EQ(means_over(ranks, {loss, accuracy}), (std::vector<double>{2.0, 2.0}));
}

}  // namespace
}  // namespace ddprun::worker
