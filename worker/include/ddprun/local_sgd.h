// Training that averages parameters now and then, and not gradients in each step: post-local SGD.
// See Lin, Stich, Patel, Jaggi: "Don't Use Large Mini-Batches, Use Local SGD", ICLR 2020. During a
// warm-up all ranks average their gradients, as DataParallel does. Then each rank, or each group of
// ranks, steps by itself. Every so many steps the parameters are averaged. The rules and the
// numbers are those of PyTorch 2.11: PostLocalSGDOptimizer with PeriodicModelAverager or
// HierarchicalModelAverager, and post_localSGD_hook.
//
//   DataParallel parallel(net.ptr(), ranks);
//   LocalSgd local(parallel, {.warmup_steps = 100, .period = 4});
//   for (…) {
//     optimizer.zero_grad();
//     torch::nll_loss(parallel.forward(net, images), labels).backward();
//     local.step(optimizer);  // in place of parallel.step()
//   }
//   average(*net, ranks);  // all ranks have the same weights again: before a checkpoint
//
// Momenta stay each rank's own. All ranks must call the same, on the training thread. Errors are
// those of DataParallel. docs/local_sgd.md says what differs from PyTorch.
#pragma once

#include <ATen/core/Tensor.h>
#include <ddprun/collective.h>
#include <ddprun/comm_hook.h>
#include <ddprun/data_parallel.h>
#include <ddprun/optimizers.h>

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

namespace torch::nn {
class Module;
}
namespace ddprun::worker {
class PeriodicAverages;
}  // namespace ddprun::worker

namespace ddprun {

// Groups of ranks that average among themselves. Ranks 0 to ranks-1 are the first group.
struct AverageLevel {
  std::int64_t period = 0;  // the average comes at steps that this divides
  int ranks = 0;            // of each group; it divides the number of all ranks
};

// Options of LocalSgd. Give equal ones on all ranks.
struct LocalSgdOptions {
  // Steps in which the gradients of all ranks are averaged. PyTorch's start_localSGD_iter and
  // warmup_steps.
  std::int64_t warmup_steps = 0;
  // Steps from one average of the parameters to the next. The first one is in the first step after
  // the warm-up, as in PyTorch.
  std::int64_t period = 4;
  // Averages over more and more ranks, instead of `period`. A step makes the last of those that are
  // due. Periods and sizes grow, and the last level has all ranks. PyTorch's
  // period_group_size_dict. Steps count from the first one, and not from the end of the warm-up.
  std::vector<AverageLevel> levels = {};
  // Ranks that go on averaging their gradients after the warm-up, such as those of a host. 1: each
  // rank is alone, PyTorch's post_local_gradient_allreduce=False. PyTorch's `subgroup` else.
  int gradient_ranks = 1;
  // Is called for the buckets of these ranks. Empty: plain sums.
  CommHook hook = {};
};

// The steps and the averages. See the head of this file. The program owns it.
class LocalSgd {
 public:
  // Takes the ranks of `parallel`, and makes the groups of them. All ranks must call it, before the
  // first forward(). `parallel` and its ranks must outlive this. Throws std::invalid_argument for
  // options that do not fit.
  explicit LocalSgd(DataParallel& parallel, const LocalSgdOptions& options = {});
  LocalSgd(const LocalSgd&) = delete;
  LocalSgd& operator=(const LocalSgd&) = delete;
  LocalSgd(LocalSgd&&) = delete;
  LocalSgd& operator=(LocalSgd&&) = delete;
  // Calls no other rank.
  ~LocalSgd();

  // Calls parallel.step(optimizer), and then after_step(). All ranks must call it.
  template <typename Optimizer, typename... Arguments>
  void step(Optimizer& optimizer, Arguments&&... arguments) {
    parallel_.step(optimizer, std::forward<Arguments>(arguments)...);
    after_step(stepped_tensors(optimizer));
  }

  // Counts a step that the program has made, as by a GradScaler. Averages these parameters if that
  // is due: those that have a gradient on any of the ranks. Behind the last step of the warm-up it
  // makes `parallel` one of fewer ranks (DataParallel::resize): all gradients are undefined then.
  // All ranks must call it. Returns whether it has averaged.
  bool after_step(const std::vector<at::Tensor>& parameters);

  // Returns the number of steps so far. A checkpoint keeps it.
  std::int64_t steps() const;
  // Goes on with that many steps, those of an earlier run. All ranks must call it, before the first
  // forward(), when they have loaded their weights. Throws std::invalid_argument below 0, and
  // std::logic_error after a step.
  void resume(std::int64_t steps);

 private:
  void leave_warm_up();

  DataParallel& parallel_;
  LocalSgdOptions options_;
  Collective& ranks_;
  std::unique_ptr<worker::PeriodicAverages> averages_;
  std::int64_t steps_ = 0;
  bool stepped_ = false;  // by this object
};

// Gives all ranks the average of their modules, on demand. Parameters and buffers of floating point
// become the averages over all ranks, other buffers rank 0's. All ranks must call it, with modules
// of the same tensors. It needs memory of the collective for the parameters once more. Throws
// CollectiveError.
void average(torch::nn::Module& module, Collective& ranks);

}  // namespace ddprun
