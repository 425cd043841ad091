#include "worker/training/data_parallel/readiness.h"

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>

#include <unordered_set>
#include <utility>

#include "base/log.h"

namespace ddprun::worker {
namespace {

using torch::autograd::Node;

class EveryParameter final : public Readiness {
 public:
  Ready on_hook(std::size_t parameter) override {
    ready_ = parameter;
    return std::span(&ready_, 1);
  }

 private:
  std::size_t ready_ = 0;
};

// All nodes of the graph below the outputs.
std::unordered_set<const Node*> nodes_below(std::span<const at::Tensor> outputs) {
  std::unordered_set<const Node*> seen;
  std::vector<const Node*> to_visit;
  const auto visit = [&](const Node* node) {
    if (node != nullptr && seen.insert(node).second) to_visit.push_back(node);
  };
  // A parameter that is an output itself has no grad_fn: its accumulator is asked for.
  for (const at::Tensor& output : outputs) {
    if (output.defined() && output.requires_grad())
      visit(torch::autograd::impl::gradient_edge(output).function.get());
  }
  while (!to_visit.empty()) {
    const Node* const node = to_visit.back();
    to_visit.pop_back();
    for (const auto& edge : node->next_edges()) visit(edge.function.get());
  }
  return seen;
}

// A parameter that the outputs do not depend on is ready at the first hook of backward(), and
// brings zeros.
class UnusedParameters final : public Readiness {
 public:
  explicit UnusedParameters(std::vector<const Node*> accumulators)
      : accumulators_(std::move(accumulators)) {}

  void begin(std::span<const at::Tensor> outputs) override {
    first_hook_ = true;
    const auto used = nodes_below(outputs);
    std::vector<std::size_t> unused;
    for (std::size_t i = 0; i < accumulators_.size(); ++i) {
      if (!used.contains(accumulators_[i])) unused.push_back(i);
    }
    const bool first_pass = !std::exchange(begun_, true);
    unchanged_ = unchanged_ && (first_pass || unused == unused_);
    unused_ = std::move(unused);
    if (unused_.empty() && !std::exchange(warned_, true)) {
      log::warning(
          "find_unused_parameters is set, but the forward pass has used all parameters. Each pass "
          "goes through the whole graph to see that, and sums one more tensor: without the option "
          "it is faster, if no later pass leaves parameters out.");
    }
  }

  Ready on_hook(std::size_t parameter) override {
    ready_.clear();
    if (std::exchange(first_hook_, false)) ready_ = unused_;
    ready_.push_back(parameter);
    return ready_;
  }

  void follow(std::vector<const Node*>&& accumulators) override {
    accumulators_ = std::move(accumulators);
  }

  bool asks_for_use() const override { return true; }
  bool use_changes() const override { return true; }
  bool unchanged() const override { return unchanged_; }
  std::span<const std::size_t> unused() const override { return unused_; }

 private:
  std::vector<const Node*> accumulators_;
  std::vector<std::size_t> unused_;
  std::vector<std::size_t> ready_;  // by one hook
  bool begun_ = false;
  bool unchanged_ = true;
  bool first_hook_ = true;
  bool warned_ = false;
};

// The first pass counts the hooks of each parameter. In later ones the last of them makes it ready.
// So backward() may come by a parameter several times, as with activation checkpointing.
class StaticGraph final : public Readiness {
 public:
  explicit StaticGraph(std::size_t parameters) : hooks_(parameters, 0) {}

  void begin(std::span<const at::Tensor> /*outputs*/) override {
    first_hook_ = true;
    // A first pass that did not end counts anew.
    if (!counted_) hooks_.assign(hooks_.size(), 0);
    left_ = hooks_;
  }

  Ready on_hook(std::size_t parameter) override {
    ready_.clear();
    if (!counted_) {
      ++hooks_.at(parameter);
      return ready_;
    }
    if (left_.at(parameter) == 0) return std::nullopt;
    if (std::exchange(first_hook_, false)) ready_ = unused_;
    if (--left_[parameter] == 0) ready_.push_back(parameter);
    return ready_;
  }

  // Once: the first pass tells for all.
  bool asks_for_use() const override { return !counted_; }
  bool waits_for_end() const override { return !counted_; }
  std::span<const std::size_t> unused() const override { return unused_; }

  void end() override {
    if (std::exchange(counted_, true)) return;
    for (std::size_t i = 0; i < hooks_.size(); ++i) {
      if (hooks_[i] == 0) unused_.push_back(i);
    }
  }

 private:
  std::vector<int> hooks_;  // of the first pass, by parameter
  std::vector<int> left_;   // of this pass
  std::vector<std::size_t> unused_;
  std::vector<std::size_t> ready_;  // by one hook
  bool counted_ = false;
  bool first_hook_ = true;
};

}  // namespace

std::unique_ptr<Readiness> make_readiness(GraphMode mode, std::vector<const Node*> accumulators) {
  switch (mode) {
    case GraphMode::kFindUnused:
      return std::make_unique<UnusedParameters>(std::move(accumulators));
    case GraphMode::kStatic:
      return std::make_unique<StaticGraph>(accumulators.size());
    case GraphMode::kDefault:
      break;
  }
  return std::make_unique<EveryParameter>();
}

}  // namespace ddprun::worker
