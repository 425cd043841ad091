// The notes that ranks give each other before an all-to-all of rows. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace ddprun::worker {

struct RowNote {
  std::int64_t wanted = -1;         // rows of its result; -1: as many as come
  std::vector<std::int64_t> gives;  // rows for each rank
  std::string row;                  // how a row looks: "Float [3]"

  bool operator==(const RowNote&) const = default;
};

std::vector<std::byte> encode(const RowNote& note);

// Returns the notes of all ranks, one blob each. Throws CollectiveError if rows look unlike, or a
// result has another size than comes. All ranks throw then. `rank`: this one.
std::vector<RowNote> read_notes(std::span<const std::vector<std::byte>> blobs, int rank);

}  // namespace ddprun::worker
