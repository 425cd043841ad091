// Data in memory, and batches of tensors, for BatchLoader: inputs and what should come out for
// them.
#pragma once

#include <ATen/ATen.h>
#include <ddprun/data_loader.h>

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace ddprun {

// A batch of a TensorDataset, or of a dataset of the program.
struct TensorBatch {
  at::Tensor inputs;   // [batch, …]
  at::Tensor targets;  // [batch, …]

  // Returns the number of samples.
  std::size_t size() const { return static_cast<std::size_t>(targets.size(0)); }
  // Moves both to page-locked memory. Throws c10::Error without a GPU.
  void pin() {
    inputs = inputs.pin_memory();
    targets = targets.pin_memory();
  }
  // Returns a copy on another device. From pinned memory the copy does not block the host.
  TensorBatch to(at::Device device) const {
    return {inputs.to(device, /*non_blocking=*/true), targets.to(device, /*non_blocking=*/true)};
  }
};

// Samples that are in memory as two tensors: row i of both is sample i.
class TensorDataset {
 public:
  // Shares both tensors: inputs [samples, …] and targets [samples, …], of one device.
  TensorDataset(at::Tensor inputs, at::Tensor targets)
      : inputs_(std::move(inputs)), targets_(std::move(targets)) {}

  // Returns the number of samples.
  std::size_t size() const { return static_cast<std::size_t>(targets_.size(0)); }
  // Returns copies of the rows that are asked for. Any thread.
  TensorBatch batch(const BatchRequest& request) const {
    const std::vector<std::int64_t> rows(request.indices.begin(), request.indices.end());
    const auto index = at::tensor(rows, at::kLong);
    return {inputs_.index_select(0, index), targets_.index_select(0, index)};
  }

 private:
  at::Tensor inputs_;
  at::Tensor targets_;
};

}  // namespace ddprun
