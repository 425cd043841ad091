#include "worker/collective/core/all_to_all_pieces.h"

#include <algorithm>
#include <utility>

namespace ddprun::worker {
namespace {

std::int64_t in_units(std::int64_t bytes) {
  return (bytes + AllToAllPieces::kUnit - 1) / AllToAllPieces::kUnit * AllToAllPieces::kUnit;
}

// The begin of the first range, if there is one.
struct Places {
  std::int64_t whole;
  std::int64_t memory;
};

// The ranges of a rank with each other one, in order. `all`: the bytes of the two. `in_piece`: how
// many of them travel in the piece.
template <typename All, typename InPiece>
std::vector<AllToAllPieces::Range> ranges(std::int64_t ranks, Places next, const All& all,
                                          const InPiece& in_piece) {
  std::vector<AllToAllPieces::Range> found;
  for (std::int64_t other = 0; other < ranks; ++other) {
    const std::int64_t length = in_piece(other);
    if (length > 0) found.push_back({next.whole, next.memory, length});
    next.whole += all(other);
    next.memory += in_units(length);
  }
  return found;
}

}  // namespace

AllToAllPieces::AllToAllPieces(Matrix bytes, std::int64_t most) : bytes_(std::move(bytes)) {
  std::int64_t largest = 0;
  for (std::int64_t from = 0; from < ranks(); ++from) {
    for (std::int64_t to = 0; to < ranks(); ++to) {
      if (from != to) largest = std::max(largest, between(from, to));
    }
  }
  if (largest == 0) return;
  // The largest block with which the first piece fits. Later ones need no more.
  std::int64_t fits = 1;
  std::int64_t too_many = in_units(largest) / kUnit + 1;
  while (fits + 1 < too_many) {
    const std::int64_t units = (fits + too_many) / 2;
    block_ = units * kUnit;
    (memory_bytes(0) <= most ? fits : too_many) = units;
  }
  block_ = fits * kUnit;
  pieces_ = (largest + block_ - 1) / block_;
}

std::int64_t AllToAllPieces::length(std::int64_t from, std::int64_t to, std::int64_t piece) const {
  if (from == to) return 0;
  return std::clamp<std::int64_t>(between(from, to) - piece * block_, 0, block_);
}

std::int64_t AllToAllPieces::room(std::int64_t from, std::int64_t to, std::int64_t piece) const {
  return in_units(length(from, to, piece));
}

std::int64_t AllToAllPieces::room_given(std::int64_t rank, std::int64_t piece) const {
  std::int64_t all = 0;
  for (std::int64_t to = 0; to < ranks(); ++to) all += room(rank, to, piece);
  return all;
}

std::int64_t AllToAllPieces::memory_bytes(std::int64_t piece) const {
  std::int64_t most = 0;
  for (std::int64_t rank = 0; rank < ranks(); ++rank) {
    std::int64_t all = room_given(rank, piece);
    for (std::int64_t from = 0; from < ranks(); ++from) all += room(from, rank, piece);
    most = std::max(most, all);
  }
  return most;
}

std::vector<Transfer> AllToAllPieces::transfers(std::int64_t piece) const {
  std::vector<std::int64_t> targets;
  for (std::int64_t to = 0; to < ranks(); ++to) targets.push_back(room_given(to, piece));
  std::vector<Transfer> all;
  for (std::int64_t from = 0; from < ranks(); ++from) {
    std::int64_t begin = 0;
    for (std::int64_t to = 0; to < ranks(); ++to) {
      std::int64_t& target = targets[static_cast<std::size_t>(to)];
      if (const std::int64_t count = length(from, to, piece); count > 0)
        all.push_back({static_cast<int>(from), static_cast<int>(to),
                       static_cast<std::size_t>(begin), static_cast<std::size_t>(begin + count),
                       static_cast<std::size_t>(target)});
      begin += room(from, to, piece);
      target += room(from, to, piece);
    }
  }
  return all;
}

std::vector<AllToAllPieces::Range> AllToAllPieces::gives(std::int64_t rank,
                                                         std::int64_t piece) const {
  return ranges(
      ranks(), {piece * block_, 0}, [&](std::int64_t to) { return between(rank, to); },
      [&](std::int64_t to) { return length(rank, to, piece); });
}

std::vector<AllToAllPieces::Range> AllToAllPieces::gets(std::int64_t rank,
                                                        std::int64_t piece) const {
  return ranges(
      ranks(), {piece * block_, room_given(rank, piece)},
      [&](std::int64_t from) { return between(from, rank); },
      [&](std::int64_t from) { return length(from, rank, piece); });
}

AllToAllPieces::Own AllToAllPieces::own(std::int64_t rank) const {
  Own own{0, 0, between(rank, rank)};
  for (std::int64_t before = 0; before < rank; ++before) {
    own.given += between(rank, before);
    own.got += between(before, rank);
  }
  return own;
}

}  // namespace ddprun::worker
