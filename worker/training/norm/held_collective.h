// Both forms of batch norm over all ranks share this: what travels, and what backward() needs.
#pragma once

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>
#include <ddprun/collective.h>
#include <ddprun/tensor_collective.h>
#include <torch/csrc/autograd/custom_function.h>

#include <memory>
#include <stdexcept>
#include <utility>

namespace ddprun::worker {

// Row r is what rank r gives. The sum with zeros changes no bit, and works with any number of
// channels and on any device. The row's last element is the rank's count.
inline at::Tensor rows_of_all(const at::Tensor& mine, const Collective& ranks,
                              TensorCollective& tensors) {
  at::Tensor rows = at::zeros({ranks.world_size(), mine.numel()}, mine.options());
  rows[ranks.rank()].copy_(mine);
  tensors.all_reduce(rows, Reduction::kSum, "batch norm");
  return rows;
}

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

// Throws std::logic_error if the graph is to have a graph.
inline void refuse_second_gradient() {
  if (!at::GradMode::is_enabled()) return;
  throw std::logic_error(
      "SyncBatchNorm: its gradient cannot be differentiated again (create_graph)");
}

}  // namespace ddprun::worker
