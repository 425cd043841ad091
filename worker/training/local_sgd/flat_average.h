// Averages tensors over ranks, all of them in one row: PyTorch's average_parameters()
// (torch/distributed/algorithms/model_averaging/utils.py of 2.11). The training thread.
#pragma once

#include <ATen/core/Tensor.h>
#include <ddprun/collective.h>

#include <cstdint>
#include <vector>

namespace ddprun::worker {

class FlatAverage {
 public:
  // `ranks` must outlive this.
  explicit FlatAverage(Collective& ranks) : ranks_(ranks) {}

  // Puts the averages into the tensors. These may be of any shapes, of floating point or complex,
  // on the collective's device. Those of several dtypes are added in the one that holds them all.
  // All ranks must call it, with tensors of the same sizes: else CollectiveError. It keeps memory
  // of the collective for all of them, for the next call.
  void run(std::vector<at::Tensor> tensors);

  // Those of the tensors that have a gradient on any rank. All ranks must call it, with as many.
  std::vector<at::Tensor> with_gradient(const std::vector<at::Tensor>& tensors);

 private:
  at::Tensor row_for(std::int64_t elements, at::ScalarType type);

  Collective& ranks_;
  at::Tensor memory_;  // of the collective
};

}  // namespace ddprun::worker
