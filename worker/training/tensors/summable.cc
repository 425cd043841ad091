#include "worker/training/tensors/summable.h"

#include <ATen/ops/from_blob.h>

#include "base/assert.h"

namespace ddprun::worker {

std::optional<Dtype> summable(at::ScalarType type) {
  if (type == at::kFloat) return Dtype::kFloat32;
  if (type == at::kDouble) return Dtype::kFloat64;
  if (type == at::kHalf) return Dtype::kFloat16;
  if (type == at::kBFloat16) return Dtype::kBFloat16;
  // As pairs of numbers.
  if (type == at::kComplexFloat) return Dtype::kFloat32;
  if (type == at::kComplexDouble) return Dtype::kFloat64;
  return std::nullopt;
}

std::optional<Dtype> reducible(at::ScalarType type) {
  if (type == at::kInt) return Dtype::kInt32;
  if (type == at::kLong) return Dtype::kInt64;
  if (type == at::kChar) return Dtype::kInt8;
  if (type == at::kByte) return Dtype::kUInt8;
  return summable(type);
}

at::Tensor allocate_tensor(std::int64_t elements, const at::TensorOptions& options,
                           Collective& collective) {
  const auto memory =
      collective.allocate(static_cast<std::size_t>(elements) * options.dtype().itemsize());
  return at::from_blob(
      memory.get(), {elements}, [memory](void* /*tensor*/) {}, options.requires_grad(false));
}

Flat flat_of(const at::Tensor& tensor) {
  const auto dtype = reducible(tensor.scalar_type());
  DDPRUN_ASSERT(dtype && tensor.is_contiguous());
  return {tensor.data_ptr(), tensor.nbytes() / size_of(*dtype), *dtype};
}

}  // namespace ddprun::worker
