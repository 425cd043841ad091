// Random models under our engine and under PyTorch's c10d::Reducer, side by side in each rank.
// Modes are the default, unused parameters and a static graph, with 2, 3 and 4 ranks. Gradients,
// weights, buckets and the order of the gradients must be equal in each iteration, bit for bit.
// DDPRUN_PARITY_SEED=N begins with another seed; each seed is one model.
#include <gtest/gtest.h>
#include <torch/nn.h>

#include <array>
#include <cstdlib>
#include <map>
#include <tuple>

#include "tests/worker/torch_ranks.h"
#include "tests/worker/training/data_parallel/random_twins.h"

namespace ddprun::worker {
namespace {

constexpr int kModels = 200;
constexpr int kGroups = 10;  // of models; a group runs in one set of ranks
constexpr int kRandomIterations = 6;
constexpr std::array kRanks{2, 3, 4};

unsigned first_seed() {
  const char* seed = std::getenv("DDPRUN_PARITY_SEED");
  return seed == nullptr ? 1 : static_cast<unsigned>(std::strtoul(seed, nullptr, 10));
}

// All ranks go on, or none: nobody shall wait for a rank that has failed.
bool anybody_failed(Collective& collective) {
  double failed = ::testing::Test::HasFailure() ? 1 : 0;
  collective.sum({&failed, 1});
  return failed > 0;
}

// Returns whether all went well.
bool train(const Recipe& recipe, Collective& collective) {
  SCOPED_TRACE(text_of(recipe));
  // PyTorch's reducer reads it when it rebuilds its buckets.
  ::setenv("DDP_SET_LAST_BUCKET_CAP", recipe.small_last ? "1" : "0", 1);
  torch::manual_seed(recipe.seed + static_cast<unsigned>(collective.rank()));
  RandomTwins twins(recipe, collective);
  for (int iteration = 0; iteration < kRandomIterations; ++iteration) {
    twins.step(iteration);
    twins.expect_equal(iteration);
    if (anybody_failed(collective)) return false;
    twins.update();
  }
  return true;
}

class RandomModels : public ::testing::TestWithParam<std::tuple<int, int>> {};

TEST_P(RandomModels, TrainAsUnderPyTorchBitForBit) {
  const auto [ranks, group] = GetParam();
  const unsigned first = first_seed() + static_cast<unsigned>(group * kModels / kGroups);
  const unsigned end = first + kModels / kGroups;
  std::printf("seeds %u to %u, %d ranks, DDPRUN_PARITY_SEED=%u\n", first, end - 1, ranks,
              first_seed());
  RecordProperty("seeds", std::to_string(first) + " to " + std::to_string(end - 1));
  RecordProperty("ranks", ranks);
  run_torch_ranks(ranks, [=](Collective& collective) {
    for (unsigned seed = first; seed < end; ++seed) {
      if (!train(random_recipe(seed, collective.world_size()), collective)) return;
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Groups, RandomModels,
                         ::testing::Combine(::testing::ValuesIn(kRanks),
                                            ::testing::Range(0, kGroups)));

TEST(RandomRuns, HaveEachModeWithEachNumberOfRanksOften) {
  std::map<std::tuple<Mode, bool, bool, int>, int> runs;
  std::map<std::string, int> models;
  for (unsigned seed = first_seed(); seed < first_seed() + kModels; ++seed) {
    for (const int ranks : kRanks) {
      const Recipe recipe = random_recipe(seed, ranks);
      ++runs[{recipe.mode, recipe.view, recipe.set_to_none, ranks}];
      models["skips unused buckets"] += recipe.skips ? 1 : 0;
      models["last bucket small"] += recipe.small_last ? 1 : 0;
    }
    const Recipe model = random_model(seed);
    models["list of limits"] += model.caps.empty() ? 0 : 1;
    models["tied weight"] += model.has(LayerKind::kTied) ? 1 : 0;
    models["sparse"] += model.has(LayerKind::kEmbedding) ? 1 : 0;
    const auto frozen = [](const LayerRecipe& layer) { return layer.frozen > 0; };
    const bool any = std::ranges::any_of(model.layers, frozen) || model.aside_frozen > 0;
    models["frozen parameter"] += any ? 1 : 0;
  }
  EXPECT_EQ(runs.size(), 3U * 2 * 2 * kRanks.size());
  int fewest = kModels;
  for (const auto& [kind, count] : runs) fewest = std::min(fewest, count);
  std::printf("%d models with 2, 3 and 4 ranks; each of the %zu combinations at least %d times\n",
              kModels, runs.size(), fewest);
  EXPECT_GE(fewest, 5);
  for (const auto& [what, count] : models) {
    std::printf("%s: %d\n", what.c_str(), count);
    EXPECT_GE(count, kModels / 5) << what;
  }
  EXPECT_GE(models["list of limits"], kModels / 4);
}

// A layer that is used twice in a pass, and runs its forward again in backward() for each use. It
// has four hooks of two parameters, in reentrant backward passes.
TEST(CheckpointedTwice, TrainsWithAStaticGraphAsUnderPyTorch) {
  for (const int ranks : kRanks) {
    run_torch_ranks(ranks, [](Collective& collective) {
      const LayerRecipe twice{.twice = true, .recomputed = true};
      for (const bool view : {true, false}) {
        for (const bool set_to_none : {true, false}) {
          const Recipe recipe{.seed = 1,
                              .ranks = collective.world_size(),
                              .mode = Mode::kStatic,
                              .view = view,
                              .set_to_none = set_to_none,
                              .layers = {{}, twice, {}}};
          if (!train(recipe, collective)) return;
        }
      }
    });
  }
}

}  // namespace
}  // namespace ddprun::worker
