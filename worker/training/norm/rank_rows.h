// Rows of all ranks in one tensor. Both forms of batch norm over all ranks share it.
#pragma once

#include <ATen/ops/zeros.h>
#include <ddprun/collective.h>
#include <ddprun/tensor_collective.h>

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

}  // namespace ddprun::worker
