// Memory of the GPU in which NCCL sums. If this NCCL can, it allocates and registers the memory.
// Then sums need no copies to buffers of NCCL's own, and fewer of the GPU's processors. Ranks must
// register all or none, so they agree on it at bring-up. Owned by the collective; one thread at a
// time. Memory may outlive both.
#pragma once

#include <ddprun/collective.h>

#include <cstddef>
#include <memory>
#include <vector>

#include "worker/collective/nccl/communicator.h"
#include "worker/collective/nccl/cuda_parts.h"
#include "worker/collective/nccl/dropped_memory.h"
#include "worker/collective/nccl/nccl_optional.h"

namespace ddprun::worker {

class NcclMemory {
 public:
  NcclMemory(std::shared_ptr<Communicator> communicator, std::shared_ptr<DroppedMemory> dropped,
             const NcclOptional& optional)
      : communicator_(std::move(communicator)), dropped_(std::move(dropped)), optional_(optional) {}

  // Tries it out on a little memory. The communicator is formed.
  bool can_register() const;
  // All ranks can.
  void register_from_now_on() { registers_ = true; }

  // Zeroed by `stream`, at least a byte. Throws CollectiveError.
  std::shared_ptr<std::byte> allocate(std::size_t bytes, cudaStream_t stream);

  // Says whether NCCL has registered some of it.
  bool is_registered(const Flat& flat) const;

  // As allocate(), but not registered, and not cleared.
  std::shared_ptr<std::byte> plain(std::size_t bytes) const;

  // The memory from allocate() that holds all of `flat`. Throws CollectiveError where there is
  // none.
  std::shared_ptr<std::byte> owner_of(const Flat& flat) const;

 private:
  // Weak: the caller alone decides how long its memory lives.
  struct Allocation {
    std::weak_ptr<std::byte> memory;
    std::size_t bytes;
  };

  std::shared_ptr<std::byte> registered(std::size_t bytes) const;

  std::shared_ptr<Communicator> communicator_;
  std::shared_ptr<DroppedMemory> dropped_;
  NcclOptional optional_;
  bool registers_ = false;
  std::vector<Allocation> allocations_;
};

}  // namespace ddprun::worker
