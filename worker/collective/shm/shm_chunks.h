// The transfer from one rank to another one, through two slots in the control segment. The sender
// writes the next piece while the other reads the last one, and is back when all is read. Part of
// ShmCollective: one thread.
#pragma once

#include <ddprun/collective.h>

#include <cstddef>
#include <cstdint>
#include <span>

#include "worker/collective/shm/shm_peers.h"

namespace ddprun::worker {

class ShmChunks {
 public:
  // `peers` must outlive this.
  explicit ShmChunks(ShmPeers& peers) : peers_(peers) {}

  // As in collective.h. `to` and `from` are another rank of the collective.
  void send(Flat flat, std::size_t to);
  void receive(Flat flat, std::size_t from);

  // In a reset, while no rank reads: what was under way is given up.
  void forget();

 private:
  void write(std::size_t to, std::span<const std::byte> piece, std::size_t total_bytes);
  void await_read(std::uint64_t number, std::size_t reader, std::uint32_t operation);
  std::uint64_t await_chunk(std::size_t from, std::uint32_t operation);
  std::uint64_t oldest_for_us(std::size_t from) const;

  ShmPeers& peers_;
  std::uint64_t written_ = 0;
  std::uint64_t read_ = 0;
};

}  // namespace ddprun::worker
