// A collective that a node of an autograd graph needs in backward(). One thread.
#pragma once

#include <ATen/core/grad_mode.h>
#include <ddprun/tensor_collective.h>
#include <torch/csrc/autograd/custom_function.h>

#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

namespace ddprun::worker {

// The graph keeps them: it may outlive its module.
struct HeldCollective : torch::CustomClassHolder {
  explicit HeldCollective(std::shared_ptr<TensorCollective> held) : tensors(std::move(held)) {}
  std::shared_ptr<TensorCollective> tensors;
};

// forward() puts the ranks there.
inline void hold(torch::autograd::AutogradContext& context,
                 const std::shared_ptr<TensorCollective>& tensors) {
  context.saved_data["collective"] =
      at::IValue::make_capsule(c10::make_intrusive<HeldCollective>(tensors));
}

// backward() finds them. Valid as long as the context.
inline TensorCollective& held_by(torch::autograd::AutogradContext& context) {
  const auto held = context.saved_data["collective"].toCapsule();
  return *static_cast<const HeldCollective&>(*held).tensors;
}

// Throws std::logic_error, which names the module, if the graph is to have a graph.
inline void refuse_second_gradient(std::string_view module) {
  if (!at::GradMode::is_enabled()) return;
  throw std::logic_error(std::string(module) +
                         ": its gradient cannot be differentiated again (create_graph)");
}

}  // namespace ddprun::worker
