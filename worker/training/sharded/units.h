// The parameters, gradients and shards of all units, and their moves. single_copy_units.cc is for
// ranks that share memory, stream_units.cc for those with a GPU each, sharded_units.cc for others.
// All ranks call the same functions in the same order, from one thread.
#pragma once

#include <ATen/core/Tensor.h>
#include <ddprun/collective.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "worker/training/sharded/flat_unit.h"

namespace ddprun::worker {

class Units {
 public:
  Units() = default;
  Units(const Units&) = delete;
  Units& operator=(const Units&) = delete;
  Units(Units&&) = delete;
  Units& operator=(Units&&) = delete;
  virtual ~Units() = default;

  // Says whether all ranks read one copy of the parameters.
  virtual bool shares_memory() const { return false; }

  // By unit, this rank's part of its flat parameter: a leaf with the type's elements, one
  // dimension.
  virtual const std::vector<at::Tensor>& shards() const = 0;

  // Afterwards the unit's parameters have their values, until release().
  virtual void gather(std::size_t unit) = 0;
  // The same, but it does not wait: gather() or release() follows.
  virtual void gather_ahead(std::size_t unit) = 0;
  virtual void release(std::size_t unit) = 0;

  // Moves the unit's gradients into the shards, averaged: what the shard's `.grad` has is added to.
  // Complete after finish_sums().
  virtual void sum(std::size_t unit) = 0;
  virtual void finish_sums() = 0;

  // Between the two the shards may be changed, and nobody reads them.
  virtual void begin_step() = 0;
  virtual void end_step() = 0;

  // Bytes that this rank has got from the others.
  virtual std::uint64_t received_bytes() = 0;
};

// All take rank 0's values of the units. All ranks must call them; `units` and `ranks` must
// outlive the result. The first one is null on all ranks if they share no memory.
std::unique_ptr<Units> make_single_copy_units(std::vector<FlatUnit>& units, Collective& ranks);
std::unique_ptr<Units> make_sharded_units(std::vector<FlatUnit>& units, Collective& ranks);
std::unique_ptr<Units> make_stream_units(std::vector<FlatUnit>& units, Collective& ranks);

// Makes those that go with the collective.
std::unique_ptr<Units> make_units(std::vector<FlatUnit>& units, Collective& ranks);

}  // namespace ddprun::worker
