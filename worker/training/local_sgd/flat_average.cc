#include "worker/training/local_sgd/flat_average.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/view_as_real.h>
#include <c10/core/ScalarType.h>

#include <cstddef>
#include <span>

#include "worker/training/tensors/device_of.h"
#include "worker/training/tensors/summable.h"

namespace ddprun::worker {

void FlatAverage::run(std::vector<at::Tensor> tensors) {
  if (ranks_.world_size() == 1 || tensors.empty()) return;
  const at::NoGradGuard no_gradients;
  std::vector<at::Tensor> rows;
  at::ScalarType type = at::ScalarType::Undefined;
  std::int64_t elements = 0;
  for (at::Tensor& tensor : tensors) {
    if (tensor.is_complex()) tensor = at::view_as_real(tensor);
    rows.push_back(tensor.reshape({-1}));
    elements += tensor.numel();
    type = type == at::ScalarType::Undefined ? tensor.scalar_type()
                                             : at::promote_types(type, tensor.scalar_type());
  }
  at::Tensor row = row_for(elements, type);
  at::cat_out(row, rows);
  row.div_(ranks_.world_size());
  Flat flat = flat_of(row);
  flat.name = "average of parameters";
  ranks_.wait(ranks_.launch_sum(flat));
  std::int64_t begin = 0;
  for (const at::Tensor& tensor : tensors) {
    tensor.copy_(row.narrow(0, begin, tensor.numel()).view_as(tensor));
    begin += tensor.numel();
  }
}

std::vector<at::Tensor> FlatAverage::with_gradient(const std::vector<at::Tensor>& tensors) {
  std::vector<std::byte> used(tensors.size() / 8 + 1);
  for (std::size_t i = 0; i < tensors.size(); ++i)
    if (tensors[i].grad().defined()) used[i / 8] |= std::byte{1} << (i % 8);
  if (ranks_.world_size() > 1) {
    for (const auto& theirs : ranks_.all_gather_bytes(used))
      for (std::size_t i = 0; i < used.size() && i < theirs.size(); ++i) used[i] |= theirs[i];
  }
  std::vector<at::Tensor> found;
  for (std::size_t i = 0; i < tensors.size(); ++i)
    if ((used[i / 8] >> (i % 8) & std::byte{1}) != std::byte{0}) found.push_back(tensors[i]);
  return found;
}

at::Tensor FlatAverage::row_for(std::int64_t elements, at::ScalarType type) {
  const auto item = static_cast<std::int64_t>(c10::elementSize(type));
  if (!memory_.defined() || memory_.numel() < elements * item) {
    memory_.reset();
    memory_ = allocate_tensor(elements * item,
                              at::TensorOptions(at::kByte).device(device_of(ranks_)), ranks_);
  }
  return memory_.narrow(0, 0, elements * item).view(type);
}

}  // namespace ddprun::worker
