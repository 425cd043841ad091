// A number as Python gives it to an operation: it does not change the dtype of the tensors beside
// it. With a plain double tensor LibTorch would promote a tensor without dimensions to double.
// LibTorch's mul_(double) swaps the factors. It rounds the number to 16 bits if the tensor has so
// few. Any thread.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/scalar_tensor.h>

namespace ddprun::worker {

inline at::Tensor wrapped_number(double value) {
  at::Tensor number = at::scalar_tensor(value, at::kDouble);
  number.unsafeGetTensorImpl()->set_wrapped_number(true);
  return number;
}

}  // namespace ddprun::worker
