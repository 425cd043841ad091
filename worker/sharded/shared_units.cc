// Ranks that share memory: the flat parameters lie in it once, for all of them. Nothing is gathered and nothing
// released. Each rank steps its shards in place, and the others wait meanwhile.
#include <ATen/ops/from_blob.h>

#include <cstddef>
#include <utility>

#include "worker/sharded/shard_sums.h"
#include "worker/sharded/units.h"

namespace ddprun::worker {
namespace {

// The memory of all ranks in a row.
struct Row {
  std::shared_ptr<std::byte> keep;
  std::byte* begin = nullptr;  // null: there is none
};

// How far apart the ranks have this memory, if that is the same for all; else 0.
std::ptrdiff_t pitch_of(const Flat& mine, Collective& ranks) {
  std::byte* const first = ranks.memory_of(mine, 0);
  if (first == nullptr) return 0;
  const std::ptrdiff_t pitch = ranks.memory_of(mine, 1) - first;
  for (int rank = 0; rank < ranks.world_size(); ++rank) {
    if (ranks.memory_of(mine, rank) != first + rank * pitch) return 0;
  }
  return pitch;
}

// Each rank takes an N-th. Where the collective rounds that up, it is asked for the rounded length: then nothing lies
// between the ranks.
Row make_row(std::size_t bytes, Collective& ranks) {
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

// What a unit takes in the row.
std::size_t place_bytes(const FlatUnit& unit) {
  return (unit.bytes() + kUnitAlignBytes - 1) / kUnitAlignBytes * kUnitAlignBytes;
}

// Keeps the whole row: the parameters may live longer than we do.
at::DataPtr kept_by(const Row& row, std::byte* memory, at::Device device) {
  auto* const owner = new std::shared_ptr<std::byte>(row.keep);
  const auto release = [](void* held) { delete static_cast<std::shared_ptr<std::byte>*>(held); };
  return {memory, owner, release, device};
}

class SharedUnits final : public Units {
 public:
  SharedUnits(std::vector<FlatUnit>& units, Collective& ranks, const Row& row)
      : ranks_(ranks), sums_(units, ranks) {
    std::byte* memory = row.begin;
    for (FlatUnit& unit : units) {
      if (ranks.rank() == 0) unit.copy_values_to(unit.flat_in(memory));
      unit.place(kept_by(row, memory, unit.device()));
      const FlatRange mine = unit.shard_of(ranks.rank());
      std::byte* const begin = memory + static_cast<std::size_t>(mine.begin) * unit.element_bytes();
      const auto keep = [held = row.keep](void* /*tensor*/) {};
      at::Tensor shard = at::from_blob(begin, {mine.length()}, keep, unit.options());
      shards_.push_back(shard.requires_grad_());
      memory += place_bytes(unit);
    }
    meet();  // rank 0's values are there
  }

  const std::vector<at::Tensor>& shards() const override { return shards_; }
  void gather(std::size_t /*unit*/) override {}
  void gather_ahead(std::size_t /*unit*/) override {}
  void release(std::size_t /*unit*/) override {}
  void sum(std::size_t unit) override {
    sums_.fill(unit);
    sums_.sum(unit, shards_[unit]);
  }
  void finish_sums() override {}
  // Some ranks may still be in an evaluating forward(), others already in the next one.
  void begin_step() override { meet(); }
  void end_step() override { meet(); }
  std::uint64_t received_bytes() override { return sums_.bytes(); }

 private:
  void meet() {
    if (ranks_.world_size() > 1) ranks_.barrier();
  }

  Collective& ranks_;
  ShardSums sums_;
  std::vector<at::Tensor> shards_;
};

}  // namespace

std::unique_ptr<Units> make_shared_units(std::vector<FlatUnit>& units, Collective& ranks) {
  std::size_t bytes = 0;
  for (const FlatUnit& unit : units) bytes += place_bytes(unit);
  const Row row = make_row(bytes, ranks);
  if (row.begin == nullptr) return nullptr;
  return std::make_unique<SharedUnits>(units, ranks, row);
}

}  // namespace ddprun::worker
