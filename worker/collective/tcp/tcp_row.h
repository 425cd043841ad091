// Bytes of a buffer that lie apart, as one row: a rank's pieces. Pure.
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>
#include <vector>

#include "worker/collective/kernels/ring_pieces.h"

namespace ddprun::worker {

class TcpRow {
 public:
  // Those of `pieces` that `owner` has.
  TcpRow(std::span<const RingPiece> pieces, std::size_t owner) {
    for (const RingPiece& piece : pieces) {
      if (piece.owner != owner) continue;
      pieces_.push_back(piece);
      ends_.push_back(size() + piece.size());
    }
  }

  std::size_t size() const { return ends_.empty() ? 0 : ends_.back(); }

  // The bytes behind `offset` of the row, as far as they are one piece. Empty at the end.
  RingPiece from(std::size_t offset) const {
    const auto next = std::ranges::upper_bound(ends_, offset);
    if (next == ends_.end()) return {};
    RingPiece piece = pieces_[static_cast<std::size_t>(next - ends_.begin())];
    piece.bytes.begin = piece.bytes.end - (*next - offset);
    return piece;
  }

 private:
  std::vector<RingPiece> pieces_;
  std::vector<std::size_t> ends_;  // of each piece in the row
};

}  // namespace ddprun::worker
