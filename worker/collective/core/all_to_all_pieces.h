// The pieces in which a large all-to-all of bytes travels. Each rank copies what it gives in a
// piece to the begin of some memory. The others' bytes come behind that. Pure.
#pragma once

#include <ddprun/collective.h>

#include <cstdint>
#include <vector>

namespace ddprun::worker {

class AllToAllPieces {
 public:
  // By rank that gives, and by rank that gets.
  using Matrix = std::vector<std::vector<std::int64_t>>;

  // `bytes` of all pairs; a rank's own travel nowhere. A piece needs `most` bytes of memory at most
  // if that is enough for kUnit of each pair.
  AllToAllPieces(Matrix bytes, std::int64_t most);

  // The places of a piece begin at multiples of so many bytes.
  static constexpr std::int64_t kUnit = 512;

  // How many pieces there are. All ranks must launch each, also if it is empty here: at least 1.
  std::int64_t pieces() const { return pieces_; }
  // The memory of a piece, the same on all ranks.
  std::int64_t memory_bytes(std::int64_t piece) const;
  std::vector<Transfer> transfers(std::int64_t piece) const;

  // Bytes of a rank in a piece that are for another rank, or come from it.
  struct Range {
    std::int64_t whole;   // their begin among all that the rank gives, or gets
    std::int64_t memory;  // their begin in the memory of the piece
    std::int64_t length;  // not 0
  };
  std::vector<Range> gives(std::int64_t rank, std::int64_t piece) const;
  std::vector<Range> gets(std::int64_t rank, std::int64_t piece) const;
  // A rank's own bytes: their begin among what it gives, and among what it gets.
  struct Own {
    std::int64_t given;
    std::int64_t got;
    std::int64_t length;
  };
  Own own(std::int64_t rank) const;

 private:
  std::int64_t ranks() const { return static_cast<std::int64_t>(bytes_.size()); }
  std::int64_t between(std::int64_t from, std::int64_t to) const {
    return bytes_[static_cast<std::size_t>(from)][static_cast<std::size_t>(to)];
  }
  std::int64_t length(std::int64_t from, std::int64_t to, std::int64_t piece) const;
  std::int64_t room(std::int64_t from, std::int64_t to, std::int64_t piece) const;
  std::int64_t room_given(std::int64_t rank, std::int64_t piece) const;

  Matrix bytes_;
  std::int64_t block_ = kUnit;  // of a pair in a piece, at most
  std::int64_t pieces_ = 1;
};

}  // namespace ddprun::worker
