// A hook on each parameter, which runs when its `.grad` has the final value of a backward().
// LibTorch forgets the node that the hook sits on when a parameter gets other data.
// Tensor::set_data() gives it, as called by torch::load() and Module::to(). So the hooks look for
// that before each forward(), and move to the new node. A node adds on the stream that was current
// when it was made. So they also move to nodes of the current stream: a capture of another one
// would break. GradientReducer owns it and calls it from the training thread.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Stream.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "worker/training/tensors/averages/named_parameter.h"

namespace torch::autograd {
struct Node;
}

namespace ddprun::worker {

class GradientHooks {
 public:
  // `run` gets the index of the parameter. The parameters must outlive this.
  GradientHooks(std::span<const NamedParameter> parameters, std::function<void(std::size_t)> run);
  GradientHooks(const GradientHooks&) = delete;
  GradientHooks& operator=(const GradientHooks&) = delete;
  GradientHooks(GradientHooks&&) = delete;
  GradientHooks& operator=(GradientHooks&&) = delete;
  ~GradientHooks();  // removes the hooks

  // Returns whether a parameter has forgotten its hook, or a stream is another one. It has a new
  // hook then. A graph that lives keeps its nodes, and their stream. Throws
  // std::runtime_error if one has another dtype, size or device than at construction.
  bool renew();

  // The nodes that add to `.grad`, by parameter.
  std::vector<const torch::autograd::Node*> nodes() const;

 private:
  struct Hook {
    std::shared_ptr<torch::autograd::Node> node;  // the parameter holds it weakly only
    std::uintptr_t key = 0;
    // The parameter's, at construction.
    std::vector<std::int64_t> sizes;
    at::ScalarType dtype;
    at::Device device;
  };

  void add(std::size_t parameter);
  // Those of this thread, on each device of the parameters. None on the CPU.
  std::vector<c10::Stream> current_streams() const;

  std::span<const NamedParameter> parameters_;
  std::function<void(std::size_t)> run_;
  std::vector<Hook> hooks_;
  std::vector<c10::Device> devices_;  // of the parameters, but for the CPU
  std::vector<c10::Stream> streams_;  // of the nodes, by device
};

}  // namespace ddprun::worker
