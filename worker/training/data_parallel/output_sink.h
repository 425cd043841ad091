// The outputs of forward() pass through one node of the graph, as PyTorch's _DDPSink
// (torch/nn/parallel/distributed.py) makes it. So backward() goes through all below each output,
// also below one that the loss does not use. Its gradients are undefined then. And somebody hears
// that backward() has begun.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <vector>

namespace ddprun::worker {

// Replaces each of these tensors that has a graph by a copy whose graph goes through one new node.
// The node calls `on_backward` when backward() comes to it, if it still lives then.
void sink_outputs(const std::vector<at::Tensor*>& outputs,
                  const std::shared_ptr<std::function<void()>>& on_backward);

}  // namespace ddprun::worker
