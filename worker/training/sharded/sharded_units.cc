// Ranks that share no memory. Each keeps its shards, and gets the others' for as long as a unit's
// parameters are needed. One thread does all of that, beside the training, with a collective of its
// own. So the program's operations, and those of its modules, may come at any time.
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cstddef>
#include <optional>
#include <utility>

#include "worker/training/sharded/shard_sums.h"
#include "worker/training/sharded/task_queue.h"
#include "worker/training/sharded/units.h"
#include "worker/training/tensors/summable.h"

namespace ddprun::worker {
namespace {

class ShardedUnits final : public Units {
 public:
  ShardedUnits(std::vector<FlatUnit>& units, Collective& ranks)
      : units_(units),
        ranks_(ranks.split(0, ranks.rank())),
        sums_(units, *ranks_),
        gathered_(units.size()) {
    for (FlatUnit& unit : units) take_shard(unit, ranks);
  }
  ShardedUnits(const ShardedUnits&) = delete;
  ShardedUnits& operator=(const ShardedUnits&) = delete;
  // The model lives longer than the memory that its parameters are gathered in.
  ~ShardedUnits() override {
    for (FlatUnit& unit : units_)
      if (unit.is_placed()) unit.remove();
  }

  const std::vector<at::Tensor>& shards() const override { return shards_; }

  void gather_ahead(std::size_t unit) override {
    if (gathered_[unit]) return;
    const at::Tensor memory = take_memory();
    gathered_[unit] = {memory, queue_.put([this, unit, memory] { gather_to(memory, unit); })};
  }

  void gather(std::size_t unit) override {
    gather_ahead(unit);
    queue_.wait(gathered_[unit]->task);
    if (!units_[unit].is_placed())
      units_[unit].place({gathered_[unit]->memory.data_ptr(), at::kCPU});
  }

  void release(std::size_t unit) override {
    if (!gathered_[unit]) return;
    queue_.wait(gathered_[unit]->task);
    if (units_[unit].is_placed()) units_[unit].remove();
    unused_.push_back(std::exchange(gathered_[unit], std::nullopt)->memory);
  }

  // There is memory for the gradients of one unit.
  void sum(std::size_t unit) override {
    queue_.wait(latest_sum_);
    sums_.fill(unit);
    latest_sum_ = queue_.put([this, unit] { sums_.sum(unit, shards_[unit]); });
  }
  void finish_sums() override { queue_.wait(latest_sum_); }

  // Parameters that were gathered before the step are old after it.
  void begin_step() override {
    for (std::size_t unit = 0; unit < units_.size(); ++unit) release(unit);
  }
  void end_step() override {}

  std::uint64_t received_bytes() override {
    queue_.wait_for_all();
    return sums_.bytes() + gathered_bytes_;
  }

 private:
  struct GatheredUnit {
    at::Tensor memory;
    TaskQueue::Number task;
  };

  // All take rank 0's values, keep their own part, and drop the rest.
  void take_shard(FlatUnit& unit, Collective& ranks) {
    const at::NoGradGuard no_grad;
    const at::Tensor memory = take_memory();
    auto* const bytes = static_cast<std::byte*>(memory.data_ptr());
    const at::Tensor flat = unit.flat_in(bytes);
    if (ranks.rank() == 0) unit.copy_values_to(flat);
    unit.remove();
    ranks.broadcast({bytes, unit.bytes(), Dtype::kUInt8, unit.name()}, 0);
    const FlatRange mine = unit.shard_of(ranks.rank());
    shards_.push_back(flat.narrow(0, mine.begin, mine.length()).clone().requires_grad_());
    unused_.push_back(memory);
  }

  // The collective's thread is idle while it allocates: all ranks do so between the same tasks.
  at::Tensor take_memory() {
    if (unused_.empty()) {
      std::size_t most = 0;
      for (const FlatUnit& unit : units_) most = std::max(most, unit.bytes());
      queue_.wait_for_all();
      return allocate_tensor(static_cast<std::int64_t>(most), at::TensorOptions(at::kByte),
                             *ranks_);
    }
    at::Tensor memory = std::move(unused_.back());
    unused_.pop_back();
    return memory;
  }

  void gather_to(const at::Tensor& memory, std::size_t index) {
    const at::NoGradGuard no_grad;
    const FlatUnit& unit = units_[index];
    auto* const bytes = static_cast<std::byte*>(memory.data_ptr());
    const FlatRange mine = unit.shard_of(ranks_->rank());
    unit.flat_in(bytes).narrow(0, mine.begin, mine.length()).copy_(shards_[index].detach());
    Flat flat = flat_of(unit.flat_in(bytes));
    flat.name = unit.name();
    ranks_->wait(ranks_->launch_all_gather(flat, unit.parts()));
    gathered_bytes_ +=
        unit.bytes() - static_cast<std::size_t>(mine.length()) * unit.element_bytes();
  }

  std::vector<FlatUnit>& units_;
  std::unique_ptr<Collective> ranks_;  // the thread's
  ShardSums sums_;
  std::vector<at::Tensor> shards_;
  std::vector<std::optional<GatheredUnit>> gathered_;
  std::vector<at::Tensor> unused_;  // memory for a unit
  std::uint64_t gathered_bytes_ = 0;
  TaskQueue::Number latest_sum_ = 0;
  TaskQueue queue_;  // the last one: its tasks use the others
};

}  // namespace

std::unique_ptr<Units> make_sharded_units(std::vector<FlatUnit>& units, Collective& ranks) {
  return std::make_unique<ShardedUnits>(units, ranks);
}

std::unique_ptr<Units> make_units(std::vector<FlatUnit>& units, Collective& ranks) {
  if (auto shared = make_single_copy_units(units, ranks)) return shared;
  return ranks.device() == Device::kCuda ? make_stream_units(units, ranks)
                                         : make_sharded_units(units, ranks);
}

}  // namespace ddprun::worker
