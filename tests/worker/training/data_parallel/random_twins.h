// One random model under our engine and under PyTorch's c10d::Reducer, side by side in a rank.
#pragma once

#include <ddprun/comm_hook.h>
#include <ddprun/data_parallel.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/nn.h>
#include <torch/optim/sgd.h>

#include <cstring>
#include <functional>
#include <memory>
#include <sstream>
#include <string>
#include <torch/csrc/distributed/c10d/logger.hpp>
#include <unordered_set>
#include <vector>

#include "tests/worker/training/data_parallel/random_recipe.h"
#include "tests/worker/training/data_parallel/reference_backend.h"
#include "worker/training/data_parallel/output_sink.h"

namespace ddprun::worker {

// A tensor that has two names comes once, as in Python.
inline std::vector<at::Tensor> trained(const torch::nn::Module& net) {
  std::vector<at::Tensor> kept;
  std::unordered_set<const at::TensorImpl*> seen;
  for (const at::Tensor& parameter : net.parameters()) {
    if (parameter.requires_grad() && seen.insert(parameter.unsafeGetTensorImpl()).second)
      kept.push_back(parameter);
  }
  return kept;
}

inline bool same_values(const at::Tensor& a, const at::Tensor& b) {
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
inline std::string first_difference(const at::Tensor& ours, const at::Tensor& theirs) {
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
        ours_(recipe.layers, recipe.aside_frozen),
        theirs_(recipe.layers, recipe.aside_frozen),
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
    EXPECT_EQ(parallel_.log_record().numbers["can_set_static_graph"],
              reference_->ddp_graph_static() ? 1 : 0);
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
    return torch::optim::SGDOptions(0.05).momentum(recipe_.has(LayerKind::kEmbedding) ? 0 : 0.9);
  }

  DataParallelOptions our_options() const {
    DataParallelOptions options;
    options.bucket_cap_bytes = recipe_.cap_bytes;
    options.first_bucket_bytes = recipe_.first_bytes;
    options.bucket_cap_bytes_list = recipe_.caps;
    options.gradient_as_bucket_view = recipe_.view;
    options.find_unused_parameters = recipe_.mode == Mode::kUnused;
    options.static_graph = recipe_.mode == Mode::kStatic;
    options.skip_all_reduce_unused_params = recipe_.skips;
    return options;
  }

  ReferenceOptions their_options() {
    ReferenceOptions options{.bucket_cap_bytes = static_cast<std::int64_t>(recipe_.cap_bytes),
                             .first_bucket_bytes = static_cast<std::int64_t>(recipe_.first_bytes),
                             .bucket_cap_bytes_list = {recipe_.caps.begin(), recipe_.caps.end()},
                             .gradient_as_bucket_view = recipe_.view,
                             .find_unused_parameters = recipe_.mode == Mode::kUnused,
                             .static_graph = recipe_.mode == Mode::kStatic,
                             .skip_all_reduce_unused_params = recipe_.skips,
                             .sparse = {}};
    for (const at::Tensor& parameter : trained(*theirs_))
      options.sparse.push_back(parameter.size(0) == kRandomRows);
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

  // Does as DistributedDataParallel around a forward (torch/nn/parallel/distributed.py, 2.11).
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

}  // namespace ddprun::worker
