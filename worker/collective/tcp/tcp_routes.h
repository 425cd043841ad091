// The bytes of an all-gather or an all-to-all on one rank. It has rows that go to the peers, and
// rows for what comes. Pure.
#pragma once

#include <ddprun/collective.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "worker/collective/core/parts.h"

namespace ddprun::worker {

// Bytes that lie apart, as one row. They outlive it.
class TcpScattered {
 public:
  // An empty piece changes nothing.
  void add(std::span<std::byte> piece) {
    if (piece.empty()) return;
    pieces_.push_back(piece);
    ends_.push_back(size() + piece.size());
  }

  std::size_t size() const { return ends_.empty() ? 0 : ends_.back(); }

  // The bytes behind `offset` of the row, as far as they are one piece. Empty at the end.
  std::span<std::byte> from(std::size_t offset) const {
    const auto next = std::ranges::upper_bound(ends_, offset);
    if (next == ends_.end()) return {};
    return pieces_[static_cast<std::size_t>(next - ends_.begin())].last(*next - offset);
  }

 private:
  std::vector<std::span<std::byte>> pieces_;
  std::vector<std::size_t> ends_;  // of each piece in the row
};

// The rows of one rank. Nothing comes from itself.
struct TcpRoutes {
  std::vector<TcpScattered> out;  // by peer; or one row, which all of them get
  std::vector<TcpScattered> in;   // by peer
  std::uint64_t hash = 0;         // LaunchRequest::hash(): all ranks have the same

  const TcpScattered& to(std::size_t peer) const { return out.size() == 1 ? out[0] : out[peer]; }
};

// The routes of `rank` in an all-gather or an all-to-all, without what it gives to itself.
TcpRoutes tcp_routes_of(const Flat& flat, const LaunchRequest& request, int rank, int ranks);

}  // namespace ddprun::worker
