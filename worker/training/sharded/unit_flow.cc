#include "worker/training/sharded/unit_flow.h"

#include <algorithm>
#include <exception>
#include <utility>

namespace ddprun::worker {
namespace {

std::size_t own_elements(const UnitRow& row, int rank) {
  std::size_t own = 0;
  for (const Part& part : row.parts) {
    if (part.owner == rank) own += part.end - part.begin;
  }
  return own;
}

template <typename Bytes>
std::size_t largest(const std::vector<UnitRow>& rows, const Bytes& bytes) {
  std::size_t most = 0;
  for (const UnitRow& row : rows) most = std::max(most, (row.*bytes)());
  return most;
}

}  // namespace

// Two operations of one group have an order, so gathers would wait for sums.
UnitFlow::UnitFlow(std::vector<UnitRow> rows, Collective& ranks, UnitTensors& tensors)
    : rows_(std::move(rows)),
      tensors_(tensors),
      gathers_(ranks.split(0, ranks.rank())),
      sums_(ranks.split(0, ranks.rank())),
      gradients_(sums_->allocate(largest(rows_, &UnitRow::summed_bytes))),
      gathered_(rows_.size()) {}

// The memory goes when the current stream has come so far. Marks may be of other streams.
UnitFlow::~UnitFlow() {
  try {
    for (const Slot& slot : slots_) hold(slot.free);
    hold(added_);
  } catch (const std::exception&) {
    // The GPU has failed, and keeps its memory.
  }
}

UnitFlow::Slot UnitFlow::take_slot() {
  if (slots_.empty()) return {gathers_->allocate(largest(rows_, &UnitRow::gathered_bytes)), {}};
  Slot slot = std::move(slots_.back());
  slots_.pop_back();
  return slot;
}

// The gather starts after what the current stream holds now: the unit before, and not this one.
void UnitFlow::gather_ahead(std::size_t unit) {
  if (gathered_[unit]) return;
  const UnitRow& row = rows_[unit];
  Slot slot = take_slot();
  hold(slot.free);
  tensors_.put_shard(unit, slot.memory.get());
  const Ticket ticket = gathers_->launch_all_gather(
      {slot.memory.get(), row.elements, row.gathered, row.name}, row.parts);
  gathered_[unit] = {.slot = std::move(slot), .ticket = ticket};
  received_ += (row.elements - own_elements(row, gathers_->rank())) * size_of(row.gathered);
}

// The current stream may be another one than at the last gather() of a unit that is still there.
void UnitFlow::gather(std::size_t unit) {
  gather_ahead(unit);
  GatheredUnit& gathered = *gathered_[unit];
  gathers_->wait(gathered.ticket);
  if (!std::exchange(gathered.placed, true)) tensors_.place(unit, gathered.slot.memory.get());
}

// If nobody has used the row, its gather may be under way.
void UnitFlow::release(std::size_t unit) {
  if (!gathered_[unit]) return;
  GatheredUnit gathered = *std::exchange(gathered_[unit], std::nullopt);
  if (gathered.placed)
    tensors_.remove(unit);
  else
    gathers_->wait(gathered.ticket);
  gathered.slot.free = tensors_.mark();
  slots_.push_back(std::move(gathered.slot));
}

// There is memory for the gradients of one unit, so the sum before this one comes to its end.
void UnitFlow::sum(std::size_t unit) {
  finish_sums();
  const UnitRow& row = rows_[unit];
  hold(added_);
  tensors_.move_gradients(unit, gradients_.get());
  const Ticket ticket = sums_->launch_reduce_scatter(
      {gradients_.get(), row.elements, row.summed, row.name}, row.parts, Reduction::kAverage);
  under_way_ = {unit, ticket};
  received_ += own_elements(row, sums_->rank()) * size_of(row.summed) *
               static_cast<std::size_t>(sums_->world_size() - 1);
}

void UnitFlow::finish_sums() {
  if (!under_way_) return;
  const UnitSum sum = *std::exchange(under_way_, std::nullopt);
  sums_->wait(sum.ticket);
  tensors_.add_average(sum.unit, gradients_.get());
  added_ = tensors_.mark();
}

// Parameters that were gathered before the step are old after it.
void UnitFlow::begin_step() {
  for (std::size_t unit = 0; unit < rows_.size(); ++unit) release(unit);
}

}  // namespace ddprun::worker
