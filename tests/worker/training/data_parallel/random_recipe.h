// The material of the random comparisons. A seed is a model: layers, limits of buckets. A seed and
// a number of ranks are a run of it. They say mode, views or copies, how gradients are zeroed, and
// hooks.
#pragma once

#include <algorithm>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "tests/worker/training/data_parallel/random_net.h"

namespace ddprun::worker {

enum class Mode { kDefault, kUnused, kStatic };

struct Recipe {
  unsigned seed = 0;
  int ranks = 2;
  Mode mode = Mode::kDefault;
  bool view = true;
  bool set_to_none = true;
  bool hook = false;         // the communication hook that sums
  bool accumulates = false;  // a pass under NoSync before each other one
  bool skips = false;        // skip_all_reduce_unused_params
  bool small_last = false;   // DDP_SET_LAST_BUCKET_CAP=1
  unsigned aside_frozen = 0;
  std::size_t first_bytes = 1 << 20;
  std::size_t cap_bytes = 25 << 20;
  std::vector<std::size_t> caps;
  std::vector<LayerRecipe> layers;

  bool has(LayerKind kind) const {
    return std::ranges::find(layers, kind, &LayerRecipe::kind) != layers.end();
  }
};

inline std::string text_of(const Recipe& recipe) {
  std::ostringstream text;
  text << "seed " << recipe.seed << ", " << recipe.ranks << " ranks, mode "
       << static_cast<int>(recipe.mode) << (recipe.view ? ", view" : ", copy")
       << (recipe.set_to_none ? ", to none" : ", to zero") << (recipe.hook ? ", hook" : "")
       << (recipe.accumulates ? ", accumulates" : "") << (recipe.skips ? ", skips" : "")
       << (recipe.small_last ? ", small last" : "") << ", limits " << recipe.first_bytes << " "
       << recipe.cap_bytes << ", list";
  for (const std::size_t cap : recipe.caps) text << " " << cap;
  text << ", layers";
  for (const LayerRecipe& layer : recipe.layers) {
    text << " " << static_cast<int>(layer.kind) << c10::toString(layer.dtype);
    if (layer.frozen > 0) text << "-frozen" << layer.frozen;
    text << (layer.twice ? "-twice" : "") << (layer.recomputed ? "-recomputed" : "");
  }
  return text.str();
}

class Dice {
 public:
  explicit Dice(unsigned seed) : engine_(seed) {}
  // One of 0 … sides - 1.
  unsigned roll(unsigned sides) { return static_cast<unsigned>(engine_()) % sides; }
  bool one_in(unsigned sides) { return roll(sides) == 0; }
  template <typename T>
  T any_of(const std::vector<T>& choices) {
    return choices[roll(static_cast<unsigned>(choices.size()))];
  }

 private:
  std::mt19937 engine_;
};

inline LayerRecipe random_layer(Dice& dice) {
  LayerRecipe layer{
      .kind = dice.any_of<LayerKind>({LayerKind::kLinear, LayerKind::kLinear, LayerKind::kScale,
                                      LayerKind::kScale, LayerKind::kTransposed,
                                      LayerKind::kEmbedding, LayerKind::kTied})};
  layer.dtype = dice.any_of<at::ScalarType>(
      {at::kFloat, at::kFloat, at::kFloat, at::kDouble, at::kBFloat16, at::kHalf});
  if (layer.kind == LayerKind::kScale && dice.one_in(3))
    layer.dtype = dice.any_of<at::ScalarType>({at::kComplexFloat, at::kComplexDouble});
  if (layer.kind == LayerKind::kEmbedding) layer.dtype = at::kFloat;
  layer.size = dice.any_of<std::int64_t>({1, 2, 7, 64, 301, 1500});
  if (dice.one_in(4)) layer.frozen = 1 + dice.roll(3);
  layer.twice = dice.one_in(4);
  layer.recomputed = dice.one_in(3);
  return layer;
}

// The bytes of one parameter, or of a layer's weight and bias, are limits too.
inline std::size_t random_limit(Dice& dice) {
  constexpr std::size_t kBias = kRandomWidth * 4;
  constexpr std::size_t kWeight = kBias * kRandomWidth;
  return dice.any_of<std::size_t>(
      {1, kBias, kWeight, kWeight + kBias, 256, 300, 1000, 4000, 1 << 20});
}

// The model alone.
inline Recipe random_model(unsigned seed) {
  Dice dice(seed);
  Recipe recipe{.seed = seed};
  recipe.first_bytes = random_limit(dice);
  recipe.cap_bytes = random_limit(dice);
  if (dice.one_in(3)) recipe.caps.resize(1 + dice.roll(3));
  for (std::size_t& cap : recipe.caps) cap = random_limit(dice);
  // The loss depends on something in each pass: the first bias.
  recipe.layers.push_back({.frozen = dice.one_in(6) ? 1U : 0U});
  for (unsigned more = dice.roll(6); more > 0; --more) recipe.layers.push_back(random_layer(dice));
  if (dice.one_in(4)) recipe.aside_frozen = 1 + dice.roll(3);
  return recipe;
}

// One run of the model.
inline Recipe random_recipe(unsigned seed, int ranks) {
  Recipe recipe = random_model(seed);
  Dice dice(seed * 10 + static_cast<unsigned>(ranks));
  recipe.ranks = ranks;
  recipe.mode = static_cast<Mode>(dice.roll(3));
  recipe.view = dice.one_in(2);
  recipe.set_to_none = dice.one_in(2);
  recipe.hook = dice.one_in(4) && !recipe.has(LayerKind::kEmbedding);
  // PyTorch counts the hooks of such a pass for its static graph, too.
  recipe.accumulates = recipe.mode != Mode::kStatic && dice.one_in(3);
  recipe.skips = recipe.mode == Mode::kUnused && !recipe.accumulates && dice.one_in(3);
  recipe.small_last = dice.one_in(4);
  if (recipe.mode != Mode::kStatic) {
    for (LayerRecipe& layer : recipe.layers) layer.recomputed = false;
  }
  return recipe;
}

// Returns which layers a pass uses. With unused parameters each rank and each pass is different. A
// static graph is different on each rank. If unused buckets are skipped, ranks are alike.
inline std::vector<bool> used_layers(const Recipe& recipe, int iteration, int rank) {
  const unsigned pass = recipe.mode == Mode::kStatic ? 0 : static_cast<unsigned>(iteration);
  Dice dice(recipe.seed * 1000 + pass * 10 + (recipe.skips ? 8 : static_cast<unsigned>(rank)));
  Dice for_all(recipe.seed * 1000 + pass * 10 + 9);
  std::vector<bool> used;
  for (const LayerRecipe& layer : recipe.layers) {
    const bool left_out = dice.one_in(4) || for_all.one_in(4);
    // PyTorch wants a gradient of each sparse parameter in each pass.
    const bool may_be_left_out =
        recipe.mode != Mode::kDefault && !used.empty() && layer.kind != LayerKind::kEmbedding;
    used.push_back(!(left_out && may_be_left_out));
  }
  return used;
}

}  // namespace ddprun::worker
