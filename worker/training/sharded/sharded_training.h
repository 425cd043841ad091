// A model whose units come and go: what ShardedParallel does, without the types of modules and
// optimizers. One thread; all ranks call the same units in the same order.
#pragma once

#include <ATen/core/Tensor.h>
#include <ddprun/collective.h>
#include <ddprun/sharded_parallel.h>
#include <torch/csrc/api/include/torch/ordered_dict.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "worker/training/sharded/flat_unit.h"
#include "worker/training/sharded/unit_order.h"
#include "worker/training/sharded/units.h"

namespace torch::autograd {
struct Node;
}
namespace torch::nn {
class Module;
}

namespace ddprun::worker {

class ShardedTraining {
 public:
  // All ranks must call it, with the same model; rank 0's parameters and buffers count. `units`:
  // the names of modules below `module`, as named_modules() has them. They stand in the order in
  // which they are called; "" is the whole of it. The collective must outlive this. `make`: one of
  // units.h.
  using MakeUnits = std::unique_ptr<Units> (*)(std::vector<FlatUnit>&, Collective&);
  ShardedTraining(std::shared_ptr<torch::nn::Module> module, Collective& ranks,
                  const std::vector<std::string>& units, MakeUnits make = make_units);
  ShardedTraining(const ShardedTraining&) = delete;
  ShardedTraining& operator=(const ShardedTraining&) = delete;
  ShardedTraining(ShardedTraining&&) = delete;
  ShardedTraining& operator=(ShardedTraining&&) = delete;
  // If nothing is shared, the model's parameters have no elements afterwards.
  ~ShardedTraining();

  // Before and after unit->forward(). before_forward() returns the unit's number.
  std::size_t before_forward(const torch::nn::Module& unit);
  void after_forward(std::size_t unit, const std::vector<at::Tensor*>& outputs);

  // By unit, this rank's part of its parameters, in a row: what the optimizer steps. One that
  // treats each number alone ends as it would with whole parameters. A unit that no forward() of a
  // pass has called has no gradient. Parameters that backward() did not come to count as zero.
  const std::vector<at::Tensor>& shards() const { return units_->shards(); }

  // The part of each parameter in this rank's shards, by all of its names.
  std::vector<ShardedParameter> parameters() const;

  // Whether the next backward() sums. If not, whole gradients accumulate on each rank.
  void set_gradient_sync(bool sums) { sums_ = sums; }

  // Before and after optimizer.step(). `stepped`: what the optimizer steps.
  void begin_step(const std::vector<at::Tensor>& stepped);
  void end_step();

  // Parameters and buffers by name, as the model without shards has them: copies, at rank 0; the
  // others get none. All ranks must call it, between passes.
  torch::OrderedDict<std::string, at::Tensor> full_state_dict();

  // Returns whether all ranks read one copy of the parameters.
  bool shares_memory() const { return units_->shares_memory(); }
  // Returns the bytes that this rank has got from the others, parameters and gradients.
  std::uint64_t received_bytes() { return units_->received_bytes(); }

 private:
  struct Hook {
    std::shared_ptr<torch::autograd::Node> node;
    std::uintptr_t key;
  };
  // The state of a unit in the pass under way.
  struct Pass {
    bool in_backward = false;
    std::size_t gradients = 0;
  };

  void add_hooks();
  void gather_ahead(std::optional<std::size_t> unit);
  void begin_backward(std::size_t unit);
  void on_gradient(std::size_t unit);
  void end_backward();
  void sum(std::size_t unit);
  void require_whole_pass() const;
  void require_sums() const;
  void note_versions();

  std::shared_ptr<torch::nn::Module> module_;
  Collective& ranks_;
  std::vector<const torch::nn::Module*> modules_;  // by unit
  std::vector<FlatUnit> flat_;
  std::unique_ptr<Units> units_;
  UnitOrder order_;
  std::vector<Pass> pass_;
  std::vector<std::uint32_t> versions_;  // of the shards, after our last step
  std::vector<Hook> hooks_;
  std::optional<std::size_t> ahead_;  // gathered, and not used yet
  bool end_queued_ = false;
  bool sums_ = true;
  std::vector<bool> unsummed_;  // by unit: a backward() that summed nothing has come to it
  std::shared_ptr<ShardedTraining*> self_;  // for hooks of graphs that live longer
};

}  // namespace ddprun::worker
