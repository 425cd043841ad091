// What of a module the ranks share: its parameters and buffers by name, the check that all ranks
// built the same model, and rank 0's values copied to the others. No gradients here. Collective
// calls, on the training thread.
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

// In registration order, depth first; a tensor that is reachable twice appears once, under its
// first name, as in Python.
std::vector<NamedTensor> parameters_of(const torch::nn::Module& module);
std::vector<NamedTensor> buffers_of(const torch::nn::Module& module);

// Compares the number, sizes and strides of `parameters` with rank 0's. A difference on any rank
// throws std::runtime_error on all of them, naming the parameter.
void verify_same_model(const std::vector<NamedTensor>& parameters, Collective& collective);

// Copies rank 0's values into the other ranks' tensors (in place, no gradient). Tensors are packed
// into few transfers of kCoalescedBytes, whatever their types. All must be dense and on the
// collective's device.
void broadcast_values(const std::vector<NamedTensor>& tensors, Collective& collective);

// One packed transfer: PyTorch's cap, so that the copy never doubles a large model's memory.
inline constexpr std::size_t kCoalescedBytes = std::size_t{250} << 20;

// The collective's name of a torch dtype; nothing where gradients of that type cannot be summed.
std::optional<Dtype> summable(at::ScalarType type);

}  // namespace ddprun::worker
