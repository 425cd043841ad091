// Ranks that share memory: the flat parameters lie in it once, for all of them. Nothing is gathered
// and nothing released. Each rank steps its shards in place, and the others wait meanwhile.
#include <ATen/ops/from_blob.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include "worker/collective/core/shared_buffer.h"
#include "worker/training/sharded/shard_sums.h"
#include "worker/training/sharded/units.h"

namespace ddprun::worker {
namespace {

// Returns the bytes of a unit in the buffer.
std::size_t place_bytes(const FlatUnit& unit) {
  return (unit.bytes() + kUnitAlignBytes - 1) / kUnitAlignBytes * kUnitAlignBytes;
}

// Keeps the whole buffer: the parameters may live longer than we do.
at::DataPtr kept_by(const SharedBuffer& buffer, std::byte* memory, at::Device device) {
  auto* const owner = new std::shared_ptr<std::byte>(buffer.keep);
  const auto release = [](void* held) { delete static_cast<std::shared_ptr<std::byte>*>(held); };
  return {memory, owner, release, device};
}

class SingleCopyUnits final : public Units {
 public:
  SingleCopyUnits(std::vector<FlatUnit>& units, Collective& ranks, const SharedBuffer& buffer)
      : ranks_(ranks), sums_(units, ranks) {
    std::byte* memory = buffer.begin;
    for (FlatUnit& unit : units) {
      if (ranks.rank() == 0) unit.copy_values_to(unit.flat_in(memory));
      unit.place(kept_by(buffer, memory, unit.device()));
      const FlatRange mine = unit.shard_of(ranks.rank());
      std::byte* const begin = memory + static_cast<std::size_t>(mine.begin) * unit.element_bytes();
      const auto keep = [held = buffer.keep](void* /*tensor*/) {};
      at::Tensor shard = at::from_blob(begin, {mine.length()}, keep, unit.options());
      shards_.push_back(shard.requires_grad_());
      memory += place_bytes(unit);
    }
    meet();  // rank 0's values are there
  }

  bool shares_memory() const override { return true; }
  const std::vector<at::Tensor>& shards() const override { return shards_; }
  void gather(std::size_t /*unit*/) override {}
  void gather_ahead(std::size_t /*unit*/) override {}
  void release(std::size_t /*unit*/) override {}
  void sum(std::size_t unit) override {
    sums_.fill(unit);
    sums_.sum(unit, shards_[unit]);
  }
  void finish_sums() override {}
  // Some ranks may still be in an evaluating forward(), others already in the next one. A rank that
  // has left out a step, or a pass, meets the others in another operation. All are told.
  void begin_step() override {
    if (ranks_.world_size() > 1) ranks_.all_gather_bytes(std::as_bytes(std::span(&steps_, 1)));
    ++steps_;
  }
  void end_step() override { meet(); }
  std::uint64_t received_bytes() override { return sums_.bytes(); }

 private:
  void meet() {
    if (ranks_.world_size() > 1) ranks_.barrier();
  }

  Collective& ranks_;
  ShardSums sums_;
  std::vector<at::Tensor> shards_;
  std::uint64_t steps_ = 0;
};

}  // namespace

std::unique_ptr<Units> make_single_copy_units(std::vector<FlatUnit>& units, Collective& ranks) {
  std::size_t bytes = 0;
  for (const FlatUnit& unit : units) bytes += place_bytes(unit);
  const SharedBuffer buffer = make_shared_buffer(bytes, ranks);
  if (buffer.begin == nullptr) return nullptr;
  return std::make_unique<SingleCopyUnits>(units, ranks, buffer);
}

}  // namespace ddprun::worker
