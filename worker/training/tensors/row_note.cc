#include "worker/training/tensors/row_note.h"

#include <ddprun/collective.h>
#include <fmt/format.h>

#include <cstring>

namespace ddprun::worker {
namespace {

RowNote decode(std::span<const std::byte> blob, std::size_t ranks) {
  std::vector<std::int64_t> numbers(1 + ranks);
  const std::size_t bytes = numbers.size() * sizeof numbers[0];
  if (blob.size() < bytes) throw CollectiveError("all_to_all: ranks disagree on what they do");
  std::memcpy(numbers.data(), blob.data(), bytes);
  const auto text = blob.subspan(bytes);
  return {numbers[0],
          {numbers.begin() + 1, numbers.end()},
          {reinterpret_cast<const char*>(text.data()), text.size()}};
}

void require_alike(std::span<const RowNote> notes, int rank) {
  const std::string& mine = notes[static_cast<std::size_t>(rank)].row;
  for (std::size_t other = 0; other < notes.size(); ++other) {
    if (notes[other].row != mine)
      throw CollectiveError(
          fmt::format("all_to_all: rank {} brings rows of {}, rank {} brings rows of {}", rank,
                      mine, other, notes[other].row));
  }
}

void require_room(std::span<const RowNote> notes) {
  for (std::size_t to = 0; to < notes.size(); ++to) {
    std::int64_t comes = 0;
    for (const RowNote& from : notes) comes += from.gives[to];
    const std::int64_t wanted = notes[to].wanted;
    if (wanted >= 0 && wanted != comes)
      throw CollectiveError(fmt::format(
          "all_to_all: the result of rank {} has {} rows, and {} come", to, wanted, comes));
  }
}

}  // namespace

std::vector<std::byte> encode(const RowNote& note) {
  const std::size_t counts = note.gives.size() * sizeof(std::int64_t);
  std::vector<std::byte> bytes(sizeof note.wanted + counts + note.row.size());
  std::memcpy(bytes.data(), &note.wanted, sizeof note.wanted);
  std::memcpy(bytes.data() + sizeof note.wanted, note.gives.data(), counts);
  std::memcpy(bytes.data() + sizeof note.wanted + counts, note.row.data(), note.row.size());
  return bytes;
}

std::vector<RowNote> read_notes(std::span<const std::vector<std::byte>> blobs, int rank) {
  std::vector<RowNote> notes;
  notes.reserve(blobs.size());
  for (const auto& blob : blobs) notes.push_back(decode(blob, blobs.size()));
  require_alike(notes, rank);
  require_room(notes);
  return notes;
}

}  // namespace ddprun::worker
