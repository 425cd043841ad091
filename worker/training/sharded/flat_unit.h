// A unit: some parameters of a model as parts of one flat parameter, whose memory comes and goes.
// While it has none, the parameters have no elements. One thread.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Allocator.h>
#include <ddprun/collective.h>
#include <ddprun/data_parallel.h>
#include <ddprun/sharded_parallel.h>

#include <cstddef>
#include <string>
#include <vector>

#include "worker/training/data_parallel/module_state.h"
#include "worker/training/sharded/unit_layout.h"

namespace ddprun::worker {

// Parts of a unit begin at multiples of it, and so do units in one mapping.
inline constexpr std::size_t kUnitAlignBytes = 64;

class FlatUnit {
 public:
  // Throws std::invalid_argument where the parameters have unlike types or devices, or one cannot
  // be trained. Shards on a GPU are equally long: NCCL has operations for those alone.
  FlatUnit(std::string name, std::vector<NamedTensor> parameters, int ranks);

  const std::string& name() const { return name_; }
  const std::vector<NamedTensor>& parameters() const { return parameters_; }
  const UnitLayout& layout() const { return layout_; }
  FlatRange shard_of(int rank) const { return layout_.shards()[static_cast<std::size_t>(rank)]; }
  std::vector<Part> parts() const;  // the shards
  // Returns the part of parameter `i` in a rank's shard, without the shard's number.
  ShardedParameter parameter_of(int rank, std::size_t i) const;
  at::Device device() const { return parameters_.front().tensor.device(); }
  std::size_t bytes() const { return static_cast<std::size_t>(layout_.length()) * element_bytes_; }
  at::TensorOptions options() const { return nothing_.options(); }  // type and device
  std::size_t element_bytes() const { return element_bytes_; }

  // The flat parameter, of the type's elements, in memory of at least bytes().
  at::Tensor flat_in(std::byte* memory) const;
  // Parameter `i` in a flat tensor, with its sizes and strides.
  at::Tensor part_of(const at::Tensor& flat, std::size_t i) const;

  // Copies the parameters' values to `flat`, and zeros between them.
  void copy_values_to(const at::Tensor& flat) const;
  // Copies the gradients there, times `factor`, and drops them. Zeros where a parameter has none.
  void move_gradients_to(const at::Tensor& flat, double factor);
  // The same without a factor, in few kernels of a GPU.
  void move_gradients_to(const at::Tensor& flat);

  // From now on the parameters are what `memory` holds. Autograd sees no change.
  void place(at::DataPtr memory);
  void remove();
  bool is_placed() const { return placed_; }

 private:
  std::string name_;
  std::vector<NamedTensor> parameters_;
  std::size_t element_bytes_;
  std::vector<std::vector<std::int64_t>> sizes_;
  std::vector<std::vector<std::int64_t>> strides_;
  UnitLayout layout_;
  c10::Storage storage_;
  std::vector<at::Tensor> placed_parts_;  // of storage_
  at::Tensor nothing_;
  bool placed_ = false;
};

}  // namespace ddprun::worker
