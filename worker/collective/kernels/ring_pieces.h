// The bytes of a buffer by who reduces them, and in which order. Pure.
#pragma once

#include <ddprun/collective.h>

#include <cstddef>
#include <span>
#include <vector>

#include "worker/collective/kernels/ring_order.h"

namespace ddprun::worker {

// Bytes of one chunk of ring_order.h that have one owner. Their sum begins with rank `first`.
struct RingPiece {
  std::size_t owner = 0;
  std::size_t first = 0;
  Chunk bytes{};

  std::size_t size() const { return bytes.end - bytes.begin; }
  bool operator==(const RingPiece&) const = default;
};

// The pieces of an all-reduce: rank r owns chunk r.
std::vector<RingPiece> ring_pieces(std::size_t bytes, std::size_t element_bytes, std::size_t world);

// Those of parts, in elements: cut where a chunk ends, in their order. None is empty.
std::vector<RingPiece> ring_pieces(std::size_t bytes, std::size_t element_bytes, std::size_t world,
                                   std::span<const Part> parts);

}  // namespace ddprun::worker
