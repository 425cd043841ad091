// Data-parallel training of a model whose parameters, gradients and optimizer's state are dealt to
// the ranks, unit by unit. It is torch.distributed.fsdp.fully_shard of PyTorch 2.11, on CPU, or in
// a world of one on a GPU. A unit is a module that the program names and calls through this. Its
// parameters are gathered before its forward and before its backward, and released afterwards. Its
// gradients are summed into the shards of their owners, averaged. Ranks of one host share their
// memory: there the parameters exist once, and nothing is gathered.
//
//   ShardedParallel sharded(net.ptr(), *process->collective, {"first", "second"});
//   Adam optimizer(sharded.shards(), Adam::Options(1e-3));
//   for (…) {
//     optimizer.zero_grad();
//     const auto hidden = sharded.forward(net->first, images);
//     torch::nll_loss(sharded.forward(net->second, hidden), labels).backward();
//     sharded.step(optimizer);
//   }
//   const auto state = sharded.full_state_dict();  // rank 0 has it
//
// Outside of its unit's forward() and backward() a parameter may have no elements. Each parameter
// belongs to one unit; units do not nest. One thread; all ranks call the same units in the same
// order. Errors are exceptions, as those of DataParallel; after one of backward() nothing here can
// be used any more. docs/sharded.md says what is left out.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/api/include/torch/ordered_dict.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "worker/collective/core/collective.h"
#include "worker/training/data_parallel/output_sink.h"
#include "worker/training/sharded/flat_unit.h"
#include "worker/training/sharded/unit_order.h"
#include "worker/training/sharded/units.h"
#include "worker/training/tensors/stepped_tensors.h"

namespace torch::autograd {
struct Node;
}
namespace torch::nn {
class Module;
}

namespace ddprun::worker {

class ShardedParallel {
 public:
  // All ranks must call it, with the same model; rank 0's parameters and buffers count. `units`:
  // the names of modules below `module`, as named_modules() has them. They stand in the order in
  // which they are called; "" is the whole of it. The collective must outlive this.
  ShardedParallel(std::shared_ptr<torch::nn::Module> module, Collective& ranks,
                  const std::vector<std::string>& units);
  ShardedParallel(const ShardedParallel&) = delete;
  ShardedParallel& operator=(const ShardedParallel&) = delete;
  ShardedParallel(ShardedParallel&&) = delete;
  ShardedParallel& operator=(ShardedParallel&&) = delete;
  // If nothing is shared, the model's parameters have no elements afterwards.
  ~ShardedParallel();

  // unit->forward(arguments...). `unit`: a module that was named, by its own type. Its result may
  // be tensors, and any vector, array, tuple, pair, optional or map of such (output_sink.h).
  // Tensors that need the unit's parameters in backward() must be reached through the result.
  template <typename Unit, typename... Arguments>
  auto forward(Unit& unit, Arguments&&... arguments) {
    const std::size_t index = before_forward(*unit);
    auto output = unit->forward(std::forward<Arguments>(arguments)...);
    using Output = decltype(output);
    static_assert(OutputTensors<Output>::kKnown, "OutputTensors must know the unit's result");
    std::vector<at::Tensor*> tensors;
    OutputTensors<Output>::collect(output, tensors);
    after_forward(index, tensors);
    return output;
  }

  // By unit, this rank's part of its parameters, in a row: what the optimizer steps. One that
  // treats each number alone ends as it would with whole parameters. A unit that no forward() of a
  // pass has called has no gradient. Parameters that backward() did not come to count as zero.
  const std::vector<at::Tensor>& shards() const { return units_->shards(); }

  // optimizer.step(), when all ranks have done with the parameters. All ranks must call it. A plain
  // optimizer.step() would change them under the others: the next forward() throws then. Throws
  // std::invalid_argument for an optimizer of the module's own parameters, which would step
  // nothing.
  template <typename Optimizer, typename... Arguments>
  void step(Optimizer& optimizer, Arguments&&... arguments) {
    begin_step(stepped_tensors(optimizer));
    optimizer.step(std::forward<Arguments>(arguments)...);
    units_->end_step();
    note_versions();
  }

  // Parameters and buffers by name, as the model without shards has them: copies, at rank 0; the
  // others get none. All ranks must call it, between passes.
  torch::OrderedDict<std::string, at::Tensor> full_state_dict();

  // Whether all ranks read one copy of the parameters.
  bool shares_memory() const { return shares_memory_; }
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
  std::size_t before_forward(const torch::nn::Module& unit);
  void after_forward(std::size_t unit, const std::vector<at::Tensor*>& outputs);
  void gather_ahead(std::optional<std::size_t> unit);
  void begin_backward(std::size_t unit);
  void on_gradient(std::size_t unit);
  void end_backward();
  void begin_step(const std::vector<at::Tensor>& stepped);
  void require_whole_pass() const;
  void note_versions();

  std::shared_ptr<torch::nn::Module> module_;
  Collective& ranks_;
  std::vector<const torch::nn::Module*> modules_;  // by unit
  std::vector<FlatUnit> flat_;
  std::unique_ptr<Units> units_;
  bool shares_memory_ = false;
  UnitOrder order_;
  std::vector<Pass> pass_;
  std::vector<std::uint32_t> versions_;  // of the shards, after our last step
  std::vector<Hook> hooks_;
  std::optional<std::size_t> ahead_;  // gathered, and not used yet
  bool end_queued_ = false;
  std::shared_ptr<ShardedParallel*> self_;  // for hooks of graphs that live longer
};

}  // namespace ddprun::worker
