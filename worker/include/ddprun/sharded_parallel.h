// Data-parallel training of a model whose parameters, gradients and optimizer's state are sharded
// over the ranks, unit by unit. It is torch.distributed.fsdp.fully_shard of PyTorch 2.11, on CPU
// or with a GPU for each rank. A unit is a module that the program names and calls through this.
// Its parameters are gathered before its forward and before its backward, and released afterwards.
// Its gradients are summed into the shards of their owners, averaged. Ranks of one host share their
// memory: there the parameters exist once, and nothing is gathered.
//
//   ShardedParallel sharded(net.ptr(), *process.collective, {"first", "second"});
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
#include <ddprun/collective.h>
#include <ddprun/optimizers.h>
#include <ddprun/output_tensors.h>
#include <torch/csrc/api/include/torch/ordered_dict.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace torch::nn {
class Module;
}
namespace ddprun::worker {
class ShardedTraining;
}  // namespace ddprun::worker

namespace ddprun {

// The elements of a parameter that lie in a shard of this rank. Elements are counted in the order
// in which the parameter's lie in memory.
struct ShardedParameter {
  std::string name;                   // as named_parameters() has it
  std::vector<std::int64_t> sizes;    // of the whole parameter
  std::vector<std::int64_t> strides;  // of the whole parameter, which has no gaps
  std::size_t shard = 0;              // shards()[shard] has the elements
  std::int64_t place = 0;             // of the first one in the shard
  std::int64_t begin = 0;             // the first one in the parameter
  std::int64_t end = 0;               // the one behind the last; as `begin`, if it has none
  bool again = false;                 // the parameter stands before, by another of its names
};

// The training of a sharded model by all ranks. See the head of this file.
class ShardedParallel {
 public:
  // Deals the model's parameters to the ranks. All must call it, with the same model; rank 0's
  // parameters and buffers count. `units`: the names of modules below `module`, as named_modules()
  // has them. They stand in the order in which they are called; "" is the whole of it. The
  // collective must outlive this.
  ShardedParallel(std::shared_ptr<torch::nn::Module> module, Collective& ranks,
                  const std::vector<std::string>& units);
  ShardedParallel(const ShardedParallel&) = delete;
  ShardedParallel& operator=(const ShardedParallel&) = delete;
  ShardedParallel(ShardedParallel&&) = delete;
  ShardedParallel& operator=(ShardedParallel&&) = delete;
  // Ends the training. If nothing is shared, the model's parameters have no elements afterwards.
  ~ShardedParallel();

  // Returns unit->forward(arguments...). All ranks must call it. `unit`: a module that was named,
  // by its own type. Its result may be tensors, and any vector, array, tuple, pair, optional or map
  // of such (output_tensors.h). Tensors that need the unit's parameters in backward() must be
  // reached through the result.
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

  // Returns by unit this rank's part of its parameters, in a row: the optimizer steps them. One
  // that treats each number alone ends as it would with whole parameters. A unit that no forward()
  // of a pass has called has no gradient. Parameters that backward() did not come to count as zero.
  const std::vector<at::Tensor>& shards() const;

  // Calls optimizer.step() when all ranks have done with the parameters. All ranks must call it. A
  // plain optimizer.step() would change them under the others: the next forward() throws then.
  // Throws std::invalid_argument for an optimizer of the module's own parameters, which would step
  // nothing.
  template <typename Optimizer, typename... Arguments>
  void step(Optimizer& optimizer, Arguments&&... arguments) {
    begin_step(stepped_tensors(optimizer));
    optimizer.step(std::forward<Arguments>(arguments)...);
    end_step();
  }

  // Calls change() when all ranks have done with the parameters. It may write other values to
  // shards(). All ranks must call it.
  void update(const std::function<void()>& change);

  // Returns the part of each parameter in this rank's shards, in the order of units. A parameter
  // with several names is there as often.
  std::vector<ShardedParameter> parameters() const;

  // Says whether backward() sums the gradients, as it does at first. If not, they accumulate on
  // each rank, whole. The next backward() that sums adds them, too, and step() needs it. All ranks
  // must call it between their backward()s. PyTorch's set_requires_gradient_sync().
  void set_gradient_sync(bool sums);

  // Returns parameters and buffers by name, as the model without shards has them. They are copies,
  // at rank 0; the others get none. All ranks must call it, between passes.
  torch::OrderedDict<std::string, at::Tensor> full_state_dict();

  // Says whether all ranks read one copy of the parameters.
  bool shares_memory() const;
  // Returns the bytes that this rank has got from the others, parameters and gradients.
  std::uint64_t received_bytes();

 private:
  std::size_t before_forward(const torch::nn::Module& unit);
  void after_forward(std::size_t unit, const std::vector<at::Tensor*>& outputs);
  void begin_step(const std::vector<at::Tensor>& stepped);
  void end_step();

  std::unique_ptr<worker::ShardedTraining> training_;
};

}  // namespace ddprun
