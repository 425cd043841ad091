// A copy of what pickled values' tensors hold, so that the training may go on while it is written.
// The memory is kept for the next copy: memory that is new costs more than the copy itself. One
// thread.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "worker/checkpoint/pickle.h"

namespace ddprun::worker {

class StateCopy {
 public:
  // Copies all storages that lie in memory and may change, and puts the copies in their places.
  // Those of the call before must be gone.
  void take(std::span<PickleOutput* const> outputs);

  // Bytes of memory that is kept.
  std::size_t capacity() const { return capacity_; }

 private:
  void reserve(std::size_t bytes);

  std::shared_ptr<std::byte> memory_;
  std::size_t capacity_ = 0;
};

}  // namespace ddprun::worker
