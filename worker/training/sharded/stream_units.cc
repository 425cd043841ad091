// Ranks on several GPUs. Each keeps its shards, and gets the others' for as long as a unit's
// parameters are needed. Streams do all of that beside the training, and the host waits for
// nothing. unit_flow.h says what waits for what.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <cstddef>
#include <memory>
#include <utility>

#include "worker/training/sharded/unit_flow.h"
#include "worker/training/sharded/units.h"
#include "worker/training/tensors/summable.h"

namespace ddprun::worker {
namespace {

std::vector<UnitRow> rows_of(const std::vector<FlatUnit>& units) {
  std::vector<UnitRow> rows;
  for (const FlatUnit& unit : units) {
    const Dtype type = *summable(unit.options().dtype().toScalarType());
    rows.push_back({.name = unit.name(),
                    .elements = static_cast<std::size_t>(unit.layout().length()),
                    .gathered = type,
                    .summed = type,
                    .parts = unit.parts()});
  }
  return rows;
}

// The shards of one rank, and LibTorch's operations on them.
class ShardTensors final : public UnitTensors {
 public:
  // All ranks must call it. They take rank 0's values, keep their own part, and drop the rest.
  ShardTensors(std::vector<FlatUnit>& units, Collective& ranks)
      : units_(units), rank_(ranks.rank()), gradients_(units.size()) {
    const at::NoGradGuard no_grad;
    for (FlatUnit& unit : units) {
      const at::Tensor flat = at::empty({unit.layout().length()}, unit.options());
      if (rank_ == 0) unit.copy_values_to(flat);
      unit.remove();
      Flat values = flat_of(flat);
      values.name = unit.name();
      ranks.broadcast(values, 0);
      shards_.push_back(own_part(unit, flat).clone().requires_grad_());
    }
  }
  ShardTensors(const ShardTensors&) = delete;
  ShardTensors& operator=(const ShardTensors&) = delete;
  // The model lives longer than the memory that its parameters are gathered in.
  ~ShardTensors() override {
    for (FlatUnit& unit : units_)
      if (unit.is_placed()) unit.remove();
  }

  const std::vector<at::Tensor>& shards() const { return shards_; }

  void put_shard(std::size_t unit, std::byte* row) override {
    const at::NoGradGuard no_grad;
    own_part(units_[unit], units_[unit].flat_in(row)).copy_(shards_[unit].detach());
  }
  void place(std::size_t unit, std::byte* row) override {
    units_[unit].place({row, units_[unit].device()});
  }
  void remove(std::size_t unit) override { units_[unit].remove(); }
  void move_gradients(std::size_t unit, std::byte* sums) override {
    units_[unit].move_gradients_to(units_[unit].flat_in(sums));
  }
  void add_average(std::size_t unit, std::byte* sums) override {
    const at::NoGradGuard no_grad;
    const at::Tensor average = own_part(units_[unit], units_[unit].flat_in(sums));
    at::Tensor& gradient = shards_[unit].mutable_grad();
    if (gradient.defined()) {
      gradient.add_(average);
      return;
    }
    if (!gradients_[unit].defined()) gradients_[unit] = at::empty_like(average);
    gradient = gradients_[unit].copy_(average);
  }

  // A CPU has no streams.
  StreamMark mark() override {
    const at::Device device = units_.front().device();
    if (device.is_cpu()) return nullptr;
    auto event = std::make_shared<c10::Event>(device.type());
    event->record(stream_of(device));
    return event;
  }
  void hold(const StreamMark& mark) override {
    std::static_pointer_cast<c10::Event>(mark)->block(stream_of(units_.front().device()));
  }

 private:
  static c10::Stream stream_of(at::Device device) {
    return c10::impl::VirtualGuardImpl(device.type()).getStream(device);
  }
  at::Tensor own_part(const FlatUnit& unit, const at::Tensor& flat) const {
    const FlatRange mine = unit.shard_of(rank_);
    return flat.narrow(0, mine.begin, mine.length());
  }

  std::vector<FlatUnit>& units_;
  const int rank_;
  std::vector<at::Tensor> shards_;
  std::vector<at::Tensor> gradients_;  // of the shards; always the same memory
};

class StreamUnits final : public Units {
 public:
  StreamUnits(std::vector<FlatUnit>& units, Collective& ranks)
      : tensors_(units, ranks), flow_(rows_of(units), ranks, tensors_) {}

  const std::vector<at::Tensor>& shards() const override { return tensors_.shards(); }
  void gather(std::size_t unit) override { flow_.gather(unit); }
  void gather_ahead(std::size_t unit) override { flow_.gather_ahead(unit); }
  void release(std::size_t unit) override { flow_.release(unit); }
  void sum(std::size_t unit) override { flow_.sum(unit); }
  void finish_sums() override { flow_.finish_sums(); }
  void begin_step() override { flow_.begin_step(); }
  void end_step() override {}
  std::uint64_t received_bytes() override { return flow_.received_bytes(); }

 private:
  ShardTensors tensors_;
  UnitFlow flow_;
};

}  // namespace

std::unique_ptr<Units> make_stream_units(std::vector<FlatUnit>& units, Collective& ranks) {
  return std::make_unique<StreamUnits>(units, ranks);
}

}  // namespace ddprun::worker
