// The reduce-scatter of a unit's gradients. It has memory for those of one unit, which are summed
// into the shards of their owners. One thread at a time.
#pragma once

#include <ATen/core/Tensor.h>
#include <ddprun/collective.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "worker/training/sharded/flat_unit.h"

namespace ddprun::worker {

class ShardSums {
 public:
  // All ranks must call it. Both must outlive this.
  ShardSums(std::vector<FlatUnit>& units, Collective& ranks);

  // Moves the unit's gradients to where sum() finds them, divided by the number of ranks.
  void fill(std::size_t unit);
  // Adds the sums over all ranks to the gradient of this rank's shard of the unit. A shard without
  // one gets it in memory that is always the same. A tensor that a program keeps of it is written
  // again. All ranks must call it.
  void sum(std::size_t unit, const at::Tensor& shard);

  // Bytes that this rank has got from the others.
  std::uint64_t bytes() const { return bytes_; }

 private:
  at::Tensor flat_of(const FlatUnit& unit) const;

  std::vector<FlatUnit>& units_;
  Collective& ranks_;
  at::Tensor memory_;
  std::vector<at::Tensor> gradients_;  // of the shards
  std::uint64_t bytes_ = 0;
};

}  // namespace ddprun::worker
