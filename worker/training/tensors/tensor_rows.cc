#include "worker/training/tensors/tensor_rows.h"

#include <ATen/ops/view_as_real.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <stdexcept>

namespace ddprun::worker {

std::string description_of(const at::Tensor& tensor) {
  return fmt::format("{} [{}]", c10::toString(tensor.scalar_type()),
                     fmt::join(tensor.sizes(), ", "));
}

void refuse_tensor(const char* operation, const std::string& why) {
  throw std::invalid_argument(fmt::format("{}: {}", operation, why));
}

bool is_plain(const at::Tensor& tensor) {
  return tensor.is_contiguous() && !tensor.is_conj() && !tensor.is_neg();
}

at::Tensor plain(const at::Tensor& tensor) {
  return tensor.detach().resolve_conj().resolve_neg().contiguous();
}

// The one element of a plain tensor may have any stride, which view() keeps.
at::Tensor in_bytes(const at::Tensor& tensor) {
  return tensor.as_strided({tensor.numel()}, {1}).view(at::kByte);
}

at::Tensor in_numbers(const at::Tensor& tensor) {
  return (tensor.is_complex() ? at::view_as_real(tensor) : tensor).view({-1});
}

Flat bytes_of(const at::Tensor& tensor, const OperationName& name) {
  return {tensor.data_ptr(), tensor.nbytes(), Dtype::kUInt8, name};
}

}  // namespace ddprun::worker
