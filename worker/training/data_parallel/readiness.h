// When the gradient of a parameter is ready to be summed. DistributedDataParallel has three modes,
// and each is a type of its own here:
//   default                 each parameter gets a gradient in each pass, once
//   find_unused_parameters  what the outputs of forward() do not depend on gets none in this pass
//   static_graph            each parameter gets as many gradients in each pass as in the first one
// The rules are those of PyTorch 2.11 (torch/csrc/distributed/c10d/reducer.cpp). They know neither
// memory nor ranks. GradientReducer owns one and calls it from the thread that runs backward(), and
// begin() from the training thread.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <vector>

namespace torch::autograd {
struct Node;
}

namespace ddprun::worker {

enum class GraphMode { kDefault, kFindUnused, kStatic };

class Readiness {
 public:
  Readiness() = default;
  Readiness(const Readiness&) = delete;
  Readiness& operator=(const Readiness&) = delete;
  Readiness(Readiness&&) = delete;
  Readiness& operator=(Readiness&&) = delete;
  virtual ~Readiness() = default;

  // A pass begins: forward() has given these tensors.
  virtual void begin(std::span<const at::Tensor> /*outputs*/) {}

  // The hook of a parameter runs in this pass. Returns the parameters whose gradients are ready
  // now, until the next call. Nothing if the graph is not the one that the mode was promised.
  using Ready = std::optional<std::span<const std::size_t>>;
  [[nodiscard]] virtual Ready on_hook(std::size_t parameter) = 0;

  // The nodes that add to `.grad` are others now.
  virtual void follow(std::vector<const torch::autograd::Node*>&& /*accumulators*/) {}

  // Returns whether this pass must ask which parameters any rank used.
  virtual bool asks_for_use() const { return false; }
  // The use of parameters in a pass says nothing of the next one.
  virtual bool use_changes() const { return false; }
  // No pass so far has left out other parameters than the first one.
  virtual bool unchanged() const { return true; }

  // All gradients of this pass become ready at the end of backward(), and not in its hooks.
  virtual bool waits_for_end() const { return false; }

  // The parameters that this pass does not use, as far as it is known before backward().
  virtual std::span<const std::size_t> unused() const { return {}; }

  // The pass was summed.
  virtual void end() {}
};

// `accumulators`: the nodes that add to `.grad`, by parameter. They must outlive the result.
std::unique_ptr<Readiness> make_readiness(GraphMode mode,
                                          std::vector<const torch::autograd::Node*> accumulators);

}  // namespace ddprun::worker
