#include "worker/training/sharded/shard_sums.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <algorithm>

#include "worker/training/tensors/summable.h"

namespace ddprun::worker {
namespace {

std::int64_t largest_bytes(const std::vector<FlatUnit>& units) {
  std::size_t most = 0;
  for (const FlatUnit& unit : units) most = std::max(most, unit.bytes());
  return static_cast<std::int64_t>(most);
}

}  // namespace

ShardSums::ShardSums(std::vector<FlatUnit>& units, Collective& ranks)
    : units_(units),
      ranks_(ranks),
      memory_(
          allocate_tensor(largest_bytes(units), units.front().options().dtype(at::kByte), ranks)) {
  for (const FlatUnit& unit : units)
    gradients_.push_back(at::empty({unit.shard_of(ranks.rank()).length()}, unit.options()));
}

at::Tensor ShardSums::flat_of(const FlatUnit& unit) const {
  return unit.flat_in(static_cast<std::byte*>(memory_.data_ptr()));
}

void ShardSums::fill(std::size_t unit) {
  units_[unit].move_gradients_to(flat_of(units_[unit]), 1.0 / ranks_.world_size());
}

void ShardSums::sum(std::size_t unit, const at::Tensor& shard) {
  const at::NoGradGuard no_grad;
  const at::Tensor flat = flat_of(units_[unit]);
  const FlatRange mine = units_[unit].shard_of(ranks_.rank());
  Flat gradients = worker::flat_of(flat);
  gradients.name = units_[unit].name();
  ranks_.wait(ranks_.launch_reduce_scatter(gradients, units_[unit].parts(), Reduction::kSum));
  bytes_ += static_cast<std::size_t>(mine.length()) * units_[unit].element_bytes() *
            static_cast<std::size_t>(ranks_.world_size() - 1);
  const at::Tensor sum = flat.narrow(0, mine.begin, mine.length());
  at::Tensor& gradient = shard.mutable_grad();
  if (gradient.defined())
    gradient.add_(sum);
  else
    gradient = gradients_[unit].copy_(sum);
}

}  // namespace ddprun::worker
