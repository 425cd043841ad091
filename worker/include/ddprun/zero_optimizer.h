// An optimizer whose state is sharded over the ranks: ZeRO, stage 1, as
// torch.distributed.optim.ZeroRedundancyOptimizer of PyTorch 2.11. Each rank keeps the momenta of
// its own parameters, steps those, and gets the others from their owners.
//
//   ZeroOptimizer<Adam> optimizer(net->parameters(), *process.collective, Adam::Options(1e-3));
//   optimizer.reduce_scatter(parallel);  // if wanted: see below
//   …
//   parallel.step(optimizer);
//
// Any optimizer of LibTorch will do that treats each parameter alone; SGD, Adam and AdamW of
// optimizers.h have Python's bits. param_groups() are those of the program, with the options of
// each, as a scheduler changes them.
//
// Bytes that a rank gets in a step, on average; S are those of all parameters. The sums of
// all-reduced gradients take 2(N-1)/N·S, and the parameters (N-1)/N·S. With reduce_scatter() the
// sums are half of it. If all ranks are on one host, they have one copy of the parameters then, and
// none travel.
#pragma once

#include <ATen/core/grad_mode.h>
#include <ddprun/collective.h>
#include <ddprun/comm_hook.h>
#include <ddprun/data_parallel.h>
#include <ddprun/join.h>
#include <ddprun/optimizers.h>
#include <torch/optim/optimizer.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace ddprun::worker {
class Shards;
}  // namespace ddprun::worker

namespace ddprun {

// Bytes that this rank has got from the others, since it was made.
struct ZeroTraffic {
  std::uint64_t gradients = 0;   // only with reduce_scatter()
  std::uint64_t parameters = 0;  // of steps
};

// The part of ZeroOptimizer that knows no optimizer. It knows whose parameter is whose, the memory
// of the parameters, and the bytes that travel. One thread, at the same places on all ranks.
class ZeroShards {
 public:
  // Deals the parameters to the ranks. All must call it, with parameters of the same sizes and
  // types: else std::runtime_error on all. `ranks` must outlive this.
  ZeroShards(std::vector<std::vector<at::Tensor>> groups, Collective& ranks);
  ZeroShards(const ZeroShards&) = delete;
  ZeroShards& operator=(const ZeroShards&) = delete;
  ZeroShards(ZeroShards&&) = delete;
  ZeroShards& operator=(ZeroShards&&) = delete;
  // Gives each rank its own parameters again, if they had one copy. Calls no other rank.
  ~ZeroShards();

  // Returns the parameters of a rank, by group, in the order of Python's local optimizers.
  std::vector<std::vector<at::Tensor>> owned_by(int rank) const;
  // Gives ranks that share memory one copy of the parameters. Returns the hook that sums each
  // bucket into the owners of its parameters. All ranks must call it.
  CommHook reduce_scatter();
  // Waits until the owners may step. All ranks must call it, before they do.
  void begin_step();
  // Gives the owners' parameters to all. All ranks must call it, behind the step.
  void share();
  // Returns at rank `to` the optimizers' states of all ranks as bytes, by rank; the others get
  // none. All ranks must call it.
  std::vector<std::string> gather_states(int to, const torch::optim::Optimizer& local) const;
  // Fills an optimizer from such bytes.
  static void load_state(const std::string& bytes, torch::optim::Optimizer& optimizer);

  // Returns the ranks of the constructor.
  Collective& ranks() const;
  // Returns the bytes so far, on this rank.
  ZeroTraffic traffic() const;

 private:
  std::unique_ptr<worker::Shards> shards_;
};

// An optimizer over all ranks. See the head of this file. `Local`: the optimizer that each rank
// steps its parameters with.
template <typename Local>
class ZeroOptimizer final : public torch::optim::Optimizer, public Joinable {
 public:
  // Parameters with their options.
  using Group = torch::optim::OptimizerParamGroup;

  // Moves the parameters into memory of the collective, which must outlive this; the tensors stay
  // the same ones. All ranks must call it, with the same parameters in the same order: else
  // std::runtime_error on all of them.
  template <typename Options>
  ZeroOptimizer(const std::vector<Group>& groups, Collective& ranks, const Options& options)
      : Optimizer(groups, std::make_unique<Options>(options)),
        make_([options](std::vector<Group> of) { return Local(std::move(of), options); }),
        shards_(tensors_of(param_groups_), ranks),
        local_(make_(groups_of(ranks.rank()))) {}
  // Does the same with one group.
  template <typename Options>
  ZeroOptimizer(std::vector<at::Tensor> parameters, Collective& ranks, const Options& options)
      : ZeroOptimizer({Group(std::move(parameters))}, ranks, options) {}

  // Sums gradients of `parallel` into the owners of their parameters, and nowhere else. After
  // backward() the `.grad` of this rank's parameters is the average. The others' is of no use. So
  // nothing that needs all gradients goes with it, like clipping by their norm. Passes that are
  // added up are made under NoSync, but for the last one. All parameters of `parallel` must be
  // here. Once for each DataParallel, before its first forward(). All ranks must call it.
  //
  // If all ranks are on one host ("shm"), they have one copy of the parameters while this lives.
  // Each owner steps its own in place, and the others read them there. So what else changes
  // parameters must set all ranks' to the same values, as loading a checkpoint does. A change that
  // depends on the old value would be made N times. The others see it at once: put a barrier()
  // before it, and one behind it.
  void reduce_scatter(DataParallel& parallel) {
    parallel.comm_hook(shards_.reduce_scatter());
    scatters_ = true;
  }

  // Steps this rank's parameters and gives all to all. All ranks must call it.
  at::Tensor step(LossClosure closure = nullptr) override {
    at::Tensor loss;
    if (closure != nullptr) {
      const at::AutoGradMode recording(true);
      loss = closure();
    }
    give_options(param_groups_, local_.param_groups());
    shards_.begin_step();
    local_.step();
    shards_.share();
    return loss;
  }

  // Makes an optimizer of all parameters with these options, and no state: for load(), and for what
  // consolidate() fills. This rank alone.
  Local unsharded() const { return make_(param_groups_); }

  // Returns the state of all ranks as that of one optimizer, at rank `to`: Python's
  // consolidate_state_dict and state_dict. On the other ranks the result has no state. A copy:
  // later steps do not change it. All ranks must call it.
  Local consolidate(int to = 0) {
    give_options(param_groups_, local_.param_groups());
    Local whole = unsharded();
    const auto states = shards_.gather_states(to, local_);
    for (std::size_t rank = 0; rank < states.size(); ++rank) {
      Local part = make_(groups_of(static_cast<int>(rank)));
      ZeroShards::load_state(states[rank], part);
      for (auto& [parameter, state] : part.state()) whole.state()[parameter] = std::move(state);
    }
    return whole;
  }

  // Takes the options of `whole`, and the state of this rank's parameters. `whole` must be
  // unsharded(), with a state loaded into it: that of a run with any number of ranks. Throws
  // std::invalid_argument where it is of other groups. Nobody else need call it.
  void load(Local whole) {
    give_options(whole.param_groups(), param_groups_);
    local_.state().clear();
    for (const auto& group : local_.param_groups()) {
      for (const at::Tensor& parameter : group.params()) {
        const auto state = whole.state().find(parameter.unsafeGetTensorImpl());
        if (state != whole.state().end()) local_.state()[state->first] = std::move(state->second);
      }
    }
  }

  // Returns this rank's optimizer, of its own parameters, with the options of param_groups(). For
  // save_distributed_checkpoint() and load_distributed_checkpoint(). It lives as long as this.
  Local& own_part() {
    give_options(param_groups_, local_.param_groups());
    return local_;
  }
  // Takes the options that own_part() has got by loading. Nobody else need call it.
  void take_options() { give_options(local_.param_groups(), param_groups_); }

  // Throws std::logic_error: one rank has not the whole state. Save consolidate().
  void save(torch::serialize::OutputArchive& /*archive*/) const override { refuse_archive(); }
  // Throws std::logic_error. Use the load() above.
  void load(torch::serialize::InputArchive& /*archive*/) override { refuse_archive(); }

  // Returns this rank's optimizer, of its own parameters. It lives as long as this.
  const Local& local() const { return local_; }
  // Returns the bytes so far, on this rank.
  ZeroTraffic traffic() const { return shards_.traffic(); }

  // Returns the ranks of its sums. It is for Join, behind its DataParallel: a rank without batches
  // steps its parameters with the others' average. (PyTorch's steps them with the gradients that
  // the rank had last.)
  Collective& join_ranks() override { return shards_.ranks(); }
  void begin_join(JoinContext& context, bool leads) override {
    if (leads)
      throw std::invalid_argument(
          "Join: a ZeroOptimizer cannot come first: name its DataParallel before it");
    if (scatters_ && !context.options().divide_by_initial_world_size)
      throw std::invalid_argument(
          "Join: reduce_scatter() divides by the number of ranks: leave "
          "divide_by_initial_world_size");
    in_join_ = true;
  }
  void shadow(const JoinIteration& round) override {
    if (round.synchronises) step();
  }
  void settle(int /*source*/) override {}
  void end_join() noexcept override { in_join_ = false; }
  // Says whether it is in a Join.
  bool in_join() const { return in_join_; }

 private:
  [[noreturn]] static void refuse_archive() {
    throw std::logic_error(
        "ZeroOptimizer: its state lies on all ranks: save consolidate(), and load() it");
  }

  static std::vector<std::vector<at::Tensor>> tensors_of(const std::vector<Group>& groups) {
    std::vector<std::vector<at::Tensor>> tensors;
    tensors.reserve(groups.size());
    for (const Group& group : groups) tensors.push_back(group.params());
    return tensors;
  }

  static void give_options(const std::vector<Group>& from, std::vector<Group>& to) {
    if (from.size() != to.size())
      throw std::invalid_argument("ZeroOptimizer: the number of groups has changed");
    for (std::size_t i = 0; i < from.size(); ++i) to[i].set_options(from[i].options().clone());
  }

  std::vector<Group> groups_of(int rank) const {
    std::vector<Group> groups;
    auto owned = shards_.owned_by(rank);
    for (std::size_t i = 0; i < owned.size(); ++i)
      groups.emplace_back(std::move(owned[i]), param_groups_[i].options().clone());
    return groups;
  }

  std::function<Local(std::vector<Group>)> make_;
  ZeroShards shards_;
  Local local_;
  bool scatters_ = false;
  bool in_join_ = false;
};

}  // namespace ddprun
