#include "worker/collective/core/shared_buffer.h"

#include <utility>

namespace ddprun::worker {
namespace {

// Returns how far apart the ranks have this memory, if that is the same for all; else 0.
std::ptrdiff_t pitch_of(const Flat& mine, Collective& ranks) {
  std::byte* const first = ranks.memory_of(mine, 0);
  if (first == nullptr) return 0;
  const std::ptrdiff_t pitch = ranks.memory_of(mine, 1) - first;
  for (int rank = 0; rank < ranks.world_size(); ++rank) {
    if (ranks.memory_of(mine, rank) != first + rank * pitch) return 0;
  }
  return pitch;
}

}  // namespace

// Each rank takes an N-th. If the collective rounds that up, it is asked for the rounded length:
// then nothing lies between the ranks.
SharedBuffer make_shared_buffer(std::size_t bytes, Collective& ranks) {
  const auto world = static_cast<std::size_t>(ranks.world_size());
  if (world == 1) {
    auto memory = ranks.allocate(bytes);
    std::byte* const begin = memory.get();
    return {std::move(memory), begin};
  }
  std::size_t part = (bytes + world - 1) / world;
  for (int attempt = 0; attempt < 2; ++attempt) {
    auto memory = ranks.allocate(part);
    const Flat mine{memory.get(), part, Dtype::kUInt8};
    const std::ptrdiff_t pitch = pitch_of(mine, ranks);
    if (pitch <= 0) return {};
    if (static_cast<std::size_t>(pitch) == part) return {memory, ranks.memory_of(mine, 0)};
    part = static_cast<std::size_t>(pitch);
  }
  return {};
}

}  // namespace ddprun::worker
