// Random models under our engine and under PyTorch's c10d::Reducer, side by side in each rank: in the
// default mode, with unused parameters and with a static graph, gradients, weights, buckets and the
// order of the gradients must be equal in each iteration, bit for bit.
// DDPRUN_PARITY_SEED=N begins with another seed; each seed is one model.
#include <gtest/gtest.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/nn.h>
#include <torch/optim/sgd.h>

#include <cstdlib>
#include <random>
#include <sstream>
#include <torch/csrc/distributed/c10d/logger.hpp>

#include "tests/worker/reducer/random_net.h"
#include "tests/worker/reducer/reference_backend.h"
#include "tests/worker/torch_ranks.h"
#include "worker/comm_hooks/comm_hooks.h"
#include "worker/reducer/data_parallel.h"

namespace ddprun::worker {
namespace {

constexpr int kModels = 200;
constexpr int kGroups = 10;  // of models; a group runs in one set of ranks
constexpr int kRandomIterations = 6;

unsigned first_seed() {
  const char* seed = std::getenv("DDPRUN_PARITY_SEED");
  return seed == nullptr ? 1 : static_cast<unsigned>(std::strtoul(seed, nullptr, 10));
}

enum class Mode { kDefault, kUnused, kStatic };

struct Recipe {
  unsigned seed = 0;
  Mode mode = Mode::kDefault;
  bool view = true;
  bool set_to_none = true;
  bool hook = false;         // the communication hook that sums
  bool accumulates = false;  // a pass under NoSync before each other one
  std::size_t first_bytes = 0;
  std::size_t cap_bytes = 0;
  std::vector<std::size_t> caps;
  std::vector<LayerRecipe> layers;

  bool sparse() const {
    return std::ranges::any_of(
        layers, [](const LayerRecipe& layer) { return layer.kind == LayerKind::kEmbedding; });
  }
};

std::string text_of(const Recipe& recipe) {
  std::ostringstream text;
  text << "seed " << recipe.seed << ", mode " << static_cast<int>(recipe.mode)
       << (recipe.view ? ", view" : ", copy") << (recipe.set_to_none ? ", to none" : ", to zero")
       << (recipe.hook ? ", hook" : "") << (recipe.accumulates ? ", accumulates" : "") << ", "
       << recipe.caps.size() << " caps, layers";
  for (const LayerRecipe& layer : recipe.layers) {
    text << " " << static_cast<int>(layer.kind) << c10::toString(layer.dtype)
         << (layer.frozen ? "-frozen" : "") << (layer.twice ? "-twice" : "")
         << (layer.recomputed ? "-recomputed" : "");
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

LayerRecipe random_layer(Dice& dice, Mode mode) {
  LayerRecipe layer{.kind = dice.any_of<LayerKind>(
                        {LayerKind::kLinear, LayerKind::kLinear, LayerKind::kScale,
                         LayerKind::kScale, LayerKind::kTransposed, LayerKind::kEmbedding})};
  layer.dtype = dice.any_of<at::ScalarType>(
      {at::kFloat, at::kFloat, at::kFloat, at::kDouble, at::kBFloat16, at::kHalf});
  if (layer.kind == LayerKind::kScale && dice.one_in(3)) {
    layer.dtype = dice.any_of<at::ScalarType>({at::kComplexFloat, at::kComplexDouble});
  }
  if (layer.kind == LayerKind::kEmbedding) layer.dtype = at::kFloat;
  layer.size = dice.any_of<std::int64_t>({1, 2, 7, 64, 301, 1500});
  layer.frozen = dice.one_in(6);
  layer.twice = dice.one_in(4);
  layer.recomputed = mode == Mode::kStatic && dice.one_in(3);
  return layer;
}

Recipe random_recipe(unsigned seed) {
  Dice dice(seed);
  Recipe recipe{.seed = seed, .mode = static_cast<Mode>(dice.roll(3))};
  recipe.view = dice.one_in(2);
  recipe.set_to_none = dice.one_in(2);
  const std::vector<std::size_t> caps{1, 300, 1000, 4000, 1 << 20};
  recipe.first_bytes = dice.any_of(caps);
  recipe.cap_bytes = dice.any_of(caps);
  if (dice.one_in(4)) recipe.caps.assign(1 + dice.roll(3), dice.any_of(caps));
  for (std::size_t& cap : recipe.caps) cap = dice.any_of(caps);
  recipe.layers.push_back({});  // the loss depends on something in each pass
  for (unsigned more = dice.roll(7); more > 0; --more) {
    recipe.layers.push_back(random_layer(dice, recipe.mode));
  }
  recipe.hook = dice.one_in(4) && !recipe.sparse();
  // PyTorch counts the hooks of such a pass for its static graph, too.
  recipe.accumulates = recipe.mode != Mode::kStatic && dice.one_in(3);
  return recipe;
}

// Which layers a pass uses. With unused parameters each rank and each pass is different; a static
// graph is different on each rank.
std::vector<bool> used_layers(const Recipe& recipe, int iteration, int rank) {
  const unsigned pass = recipe.mode == Mode::kStatic ? 0 : static_cast<unsigned>(iteration);
  Dice dice(recipe.seed * 1000 + pass * 10 + static_cast<unsigned>(rank));
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

std::vector<at::Tensor> trained(const torch::nn::Module& net) {
  std::vector<at::Tensor> kept;
  for (const at::Tensor& parameter : net.parameters()) {
    if (parameter.requires_grad()) kept.push_back(parameter);
  }
  return kept;
}

bool same_values(const at::Tensor& a, const at::Tensor& b) {
  if (a.defined() != b.defined()) return false;
  if (!a.defined()) return true;
  if (a.layout() != b.layout()) return false;
  if (a.layout() == at::kSparse) {
    const auto left = a.coalesce();
    const auto right = b.coalesce();
    return same_values(left.indices(), right.indices()) &&
           same_values(left.values(), right.values());
  }
  // A lazily conjugated tensor has other bits in memory.
  const auto left = a.resolve_conj().contiguous();
  const auto right = b.resolve_conj().contiguous();
  return left.sizes() == right.sizes() && left.scalar_type() == right.scalar_type() &&
         (left.numel() == 0 || std::memcmp(left.data_ptr(), right.data_ptr(), left.nbytes()) == 0);
}

// The first value that is not the same, with all its bits.
std::string first_difference(const at::Tensor& ours, const at::Tensor& theirs) {
  if (!ours.defined() || !theirs.defined() || ours.layout() != theirs.layout())
    return "one is undefined, or has another layout";
  const auto numbers = [](const at::Tensor& tensor) {
    const auto dense = tensor.is_sparse() ? tensor.to_dense() : tensor;
    return (dense.is_complex() ? at::view_as_real(dense.resolve_conj()) : dense)
        .to(torch::kDouble)
        .reshape(-1);
  };
  const auto a = numbers(ours);
  const auto b = numbers(theirs);
  std::ostringstream text;
  text << std::hexfloat;
  for (std::int64_t i = 0; i < std::min(a.numel(), b.numel()); ++i) {
    const auto x = a[i].item<double>();
    const auto y = b[i].item<double>();
    if (std::memcmp(&x, &y, sizeof x) == 0) continue;
    text << "value " << i << " of " << a.numel() << ": " << x << ", PyTorch's " << y;
    break;
  }
  return text.str();
}

class RandomTwins {
 public:
  RandomTwins(const Recipe& recipe, Collective& collective)
      : recipe_(recipe),
        collective_(collective),
        ours_(recipe.layers),
        theirs_(recipe.layers),
        our_optimizer_(trained(*ours_), sgd()),
        their_optimizer_(trained(*theirs_), sgd()),
        parallel_(ours_.ptr(), collective, our_options()),
        reference_(make_reference(trained(*theirs_), collective, their_options())),
        logger_(std::make_shared<c10d::Logger>(reference_)) {
    reference_->set_logger(logger_);
    if (recipe.hook) {
      parallel_.comm_hook(all_reduce_hook());
      reference_->register_builtin_comm_hook(c10d::BuiltinCommHookType::ALLREDUCE);
    }
    const torch::NoGradGuard no_grad;  // both begin with rank 0's values
    const auto source = ours_->parameters();
    const auto target = theirs_->parameters();
    for (std::size_t i = 0; i < source.size(); ++i) at::Tensor(target[i]).copy_(source[i]);
  }

  void step(int iteration) {
    torch::manual_seed(1000 * recipe_.seed + 10 * iteration + collective_.rank());
    const auto x = torch::randn({4, kRandomWidth});
    const auto rows = torch::randint(kRandomRows, {4}, torch::kLong);
    const auto used = used_layers(recipe_, iteration, collective_.rank());
    zero(*ours_);
    zero(*theirs_);
    if (recipe_.accumulates)
      accumulate(x * 2, rows, used_layers(recipe_, iteration + 100, collective_.rank()));
    auto [ours, our_aside] = parallel_.forward(ours_, x, rows, used);
    loss(ours, our_aside, iteration).backward();
    pass_of_reference(x, rows, used, iteration);
  }

  void expect_equal(int iteration) {
    const auto names = ours_->named_parameters();
    const auto theirs = theirs_->parameters();
    for (std::size_t i = 0; i < names.size(); ++i) {
      EXPECT_TRUE(same_values(names[i].value().grad(), theirs[i].grad()))
          << "iteration " << iteration << ": gradient of " << names[i].key() << "\n"
          << first_difference(names[i].value().grad(), theirs[i].grad());
      EXPECT_TRUE(same_values(names[i].value(), theirs[i]))
          << "iteration " << iteration << ": weight " << names[i].key();
    }
    EXPECT_EQ(parallel_.buckets(), logger_->get_per_bucket_variable_indices());
    // PyTorch does not note the order in the first pass of a static graph.
    if (recipe_.mode == Mode::kStatic && iteration == 0) return;
    EXPECT_EQ(parallel_.ready_order(), reference_order()) << "iteration " << iteration;
  }

  void update() {
    parallel_.step(our_optimizer_);
    their_optimizer_.step();
  }

 private:
  torch::optim::SGDOptions sgd() const {
    return torch::optim::SGDOptions(0.05).momentum(recipe_.sparse() ? 0 : 0.9);
  }

  DataParallelOptions our_options() const {
    DataParallelOptions options;
    options.bucket_cap_bytes = recipe_.cap_bytes;
    options.first_bucket_bytes = recipe_.first_bytes;
    options.bucket_cap_bytes_list = recipe_.caps;
    options.gradient_as_bucket_view = recipe_.view;
    options.find_unused_parameters = recipe_.mode == Mode::kUnused;
    options.static_graph = recipe_.mode == Mode::kStatic;
    return options;
  }

  ReferenceOptions their_options() {
    ReferenceOptions options{.bucket_cap_bytes = static_cast<std::int64_t>(recipe_.cap_bytes),
                             .first_bucket_bytes = static_cast<std::int64_t>(recipe_.first_bytes),
                             .bucket_cap_bytes_list = {recipe_.caps.begin(), recipe_.caps.end()},
                             .gradient_as_bucket_view = recipe_.view,
                             .find_unused_parameters = recipe_.mode == Mode::kUnused,
                             .static_graph = recipe_.mode == Mode::kStatic,
                             .sparse = {}};
    for (const auto& item : theirs_->named_parameters()) {
      if (item.value().requires_grad())
        options.sparse.push_back(item.key().find("embedding") != std::string::npos);
    }
    return options;
  }

  // A pass whose gradients stay on this rank, of both.
  void accumulate(const at::Tensor& x, const at::Tensor& rows, const std::vector<bool>& used) {
    {
      const auto no_sync = parallel_.no_sync();
      auto [out, aside] = parallel_.forward(ours_, x, rows, used);
      loss(out, aside, 0).backward();
    }
    reference_->rebuild_buckets();
    auto [out, aside] = theirs_(x, rows, used);
    loss(out, aside, 0).backward();
  }

  // With unused parameters every other pass leaves the second output out of the loss.
  at::Tensor loss(const at::Tensor& x, const at::Tensor& aside, int iteration) const {
    const bool alone = recipe_.mode == Mode::kUnused && iteration % 2 == 1;
    const auto sum = x.pow(2).mean();
    return alone ? sum : sum + aside.pow(2).mean();
  }

  void zero(const torch::nn::Module& net) const {
    for (const at::Tensor& parameter : net.parameters()) {
      at::Tensor& gradient = parameter.mutable_grad();
      if (!gradient.defined()) continue;
      if (recipe_.set_to_none)
        gradient.reset();
      else
        gradient.zero_();
    }
  }

  // What DistributedDataParallel does around a forward (torch/nn/parallel/distributed.py, 2.11).
  void pass_of_reference(const at::Tensor& x, const at::Tensor& rows, const std::vector<bool>& used,
                         int iteration) {
    reference_->prepare_for_forward();
    reference_->rebuild_buckets();
    auto [out, aside] = theirs_(x, rows, used);
    reference_->prepare_for_backward(recipe_.mode == Mode::kUnused
                                         ? std::vector<at::Tensor>{out, aside}
                                         : std::vector<at::Tensor>{});
    const auto delay = std::make_shared<std::function<void()>>([this, iteration] {
      if (recipe_.mode != Mode::kStatic || iteration != 0) return;
      torch::autograd::Engine::get_default_engine().queue_callback(
          [this] { reference_->delay_all_reduce(); });
    });
    const bool sinks =
        recipe_.mode == Mode::kUnused || (recipe_.mode == Mode::kStatic && iteration == 0);
    if (sinks) sink_outputs({&out, &aside}, delay);
    loss(out, aside, iteration).backward();
  }

  std::vector<std::size_t> reference_order() {
    logger_->set_runtime_stats_and_log();
    std::istringstream text(
        logger_->get_ddp_logging_data().strs_map["prev_iteration_grad_ready_order_indices"]);
    std::vector<std::size_t> order;
    for (std::string word; std::getline(text, word, ',');) order.push_back(std::stoul(word));
    return order;
  }

  Recipe recipe_;
  Collective& collective_;
  RandomNet ours_;
  RandomNet theirs_;
  torch::optim::SGD our_optimizer_;
  torch::optim::SGD their_optimizer_;
  DataParallel parallel_;
  std::shared_ptr<c10d::Reducer> reference_;
  std::shared_ptr<c10d::Logger> logger_;
};

class RandomModels : public ::testing::TestWithParam<int> {};

TEST_P(RandomModels, TrainAsUnderPyTorchBitForBit) {
  const int group = GetParam();
  const unsigned first = first_seed() + static_cast<unsigned>(group * kModels / kGroups);
  const unsigned end = first + kModels / kGroups;
  std::printf("seeds %u to %u, DDPRUN_PARITY_SEED=%u\n", first, end - 1, first_seed());
  run_torch_ranks(2 + group % 3, [=](Collective& collective) {
    for (unsigned seed = first; seed < end && !::testing::Test::HasFailure(); ++seed) {
      const Recipe recipe = random_recipe(seed);
      SCOPED_TRACE(text_of(recipe));
      torch::manual_seed(seed + static_cast<unsigned>(collective.rank()));
      RandomTwins twins(recipe, collective);
      for (int iteration = 0; iteration < kRandomIterations; ++iteration) {
        twins.step(iteration);
        twins.expect_equal(iteration);
        // All ranks go on, or none: nobody shall wait for a rank that has failed.
        double failed = ::testing::Test::HasFailure() ? 1 : 0;
        collective.sum({&failed, 1});
        if (failed > 0) return;
        twins.update();
      }
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Groups, RandomModels, ::testing::Range(0, kGroups));

}  // namespace
}  // namespace ddprun::worker
