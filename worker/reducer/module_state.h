// What the ranks share of a module at the start: its parameters and buffers by name, a check that
// all ranks built the same model, and a copy of rank 0's values. No gradients here. Owns nothing.
// verify_same_model and broadcast_values must be called by all ranks, on the training thread.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <string>
#include <vector>

#include "worker/collective/collective.h"

namespace torch::nn {
class Module;
}

namespace ddprun::worker {

struct NamedTensor {
  std::string name;  // dotted path in the module
  at::Tensor tensor;
};

// In registration order, depth first. A tensor that two modules share appears once, under its first
// name, as in Python.
std::vector<NamedTensor> parameters_of(const torch::nn::Module& module);
std::vector<NamedTensor> buffers_of(const torch::nn::Module& module);

// Compares the number, sizes and strides of `parameters` with rank 0's. A difference on any rank
// throws std::runtime_error on all of them, naming the parameter.
void verify_same_model(const std::vector<NamedTensor>& parameters, Collective& collective);

// Copies rank 0's values into the tensors of the other ranks, in place and unseen by autograd.
// Tensors of all types are packed together, so that there are few transfers. All must be dense and
// on the collective's device.
void broadcast_values(const std::vector<NamedTensor>& tensors, Collective& collective);

// The most bytes of one packed transfer; a larger tensor travels alone. PyTorch's number
// (torch/nn/parallel/distributed.py, broadcast_bucket_size). Without a limit the packed copy would
// double the memory of a large model.
inline constexpr std::size_t kCoalescedBytes = std::size_t{250} << 20;

// The collective's name of a torch dtype; nothing if gradients of that type cannot be summed.
std::optional<Dtype> summable(at::ScalarType type);

}  // namespace ddprun::worker
