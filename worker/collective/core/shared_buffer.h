// Memory that all ranks of a host see once: one buffer, in which each of them holds an N-th.
// Without LibTorch.
#pragma once

#include <ddprun/collective.h>

#include <cstddef>
#include <memory>

namespace ddprun::worker {

struct SharedBuffer {
  std::shared_ptr<std::byte> keep;  // the whole buffer lives as long as this
  std::byte* begin = nullptr;       // null: the ranks share no memory, or have gaps in it
};

// At least `bytes` of it, zeroed as Collective::allocate() does. All ranks must call it with the
// same number. A world of one has the memory for itself.
SharedBuffer make_shared_buffer(std::size_t bytes, Collective& ranks);

}  // namespace ddprun::worker
