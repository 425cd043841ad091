#include "worker/collective/kernels/ring_pieces.h"

#include <algorithm>

namespace ddprun::worker {

std::vector<RingPiece> ring_pieces(std::size_t bytes, std::size_t element_bytes,
                                   std::size_t world) {
  std::vector<RingPiece> pieces;
  for (std::size_t rank = 0; rank < world; ++rank) {
    const Chunk chunk = ring_chunk(bytes, element_bytes, world, rank);
    if (chunk.begin != chunk.end) pieces.push_back({rank, rank, chunk});
  }
  return pieces;
}

std::vector<RingPiece> ring_pieces(std::size_t bytes, std::size_t element_bytes, std::size_t world,
                                   std::span<const Part> parts) {
  if (parts.empty()) return {};
  const auto chunks = ring_pieces(bytes, element_bytes, world);
  std::vector<RingPiece> pieces;
  for (const Part& part : parts) {
    for (const RingPiece& chunk : chunks) {
      const Chunk common{std::max(part.begin * element_bytes, chunk.bytes.begin),
                         std::min(part.end * element_bytes, chunk.bytes.end)};
      if (common.begin < common.end)
        pieces.push_back({static_cast<std::size_t>(part.owner), chunk.first, common});
    }
  }
  return pieces;
}

}  // namespace ddprun::worker
