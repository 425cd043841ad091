// Activations from a stage to the next one, and their gradients back. Each of the two ranks has one
// of its own. The first activation is described to the receiver; all others are like it.
#pragma once

#include <ATen/core/Tensor.h>
#include <ddprun/tensor_collective.h>

#include <optional>

#include "worker/training/pipeline/activation_shape.h"

namespace ddprun::worker {

class ActivationLink {
 public:
  // `peer`: the rank at the other end. All must outlive this.
  ActivationLink(TensorCollective& tensors, Collective& ranks, int peer)
      : tensors_(tensors), ranks_(ranks), peer_(peer) {}

  // The end of the stage before. Throws std::invalid_argument for an activation that differs from
  // the first one.
  void send(const at::Tensor& activation, int micro_batch);
  // Returns the gradient of an activation; undefined if it needs none.
  at::Tensor receive_gradient(int micro_batch);

  // The end of the stage behind. Returns a leaf, which needs a gradient if the one that was sent
  // does.
  at::Tensor receive(int micro_batch);
  // Sends nothing if the activation needs no gradient. An undefined one counts as zeros.
  void send_gradient(const at::Tensor& gradient, int micro_batch);

  // The shape that was described; nothing before the first activation.
  const std::optional<ActivationShape>& shape() const { return shape_; }

 private:
  at::Tensor receive_like(const char* what, int micro_batch);
  void describe(const ActivationShape& shape);
  ActivationShape described();

  TensorCollective& tensors_;
  Collective& ranks_;
  int peer_;
  std::optional<ActivationShape> shape_;  // since the first activation
};

}  // namespace ddprun::worker
