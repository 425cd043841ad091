// Averages gradients over the ranks while backward() runs. A hook on each parameter fills its
// bucket. Full buckets are launched in order. backward() returns when all sums are complete. A pass
// is one forward() and its backward(). This class does what others decide:
//   Pass            how far the pass is
//   BucketLayout    when to rebuild the buckets
//   Readiness       when a gradient is ready
//   BucketQueue     which bucket is launched next
//   GradientBuckets where gradients lie
//   BucketSums      what travels, by the Collective
// DataParallel owns it and calls it from the training thread. Its hooks run on the thread that runs
// backward() for the parameter's device. With several devices they take turns.
#pragma once

#include <ddprun/data_parallel.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "worker/training/data_parallel/bucket_layout.h"
#include "worker/training/data_parallel/bucket_queue.h"
#include "worker/training/data_parallel/bucket_sums.h"
#include "worker/training/data_parallel/device_collectives.h"
#include "worker/training/data_parallel/gradient_buckets.h"
#include "worker/training/data_parallel/pass.h"
#include "worker/training/data_parallel/pass_messages.h"
#include "worker/training/data_parallel/pass_times.h"
#include "worker/training/data_parallel/readiness.h"
#include "worker/training/data_parallel/ready_events.h"
#include "worker/training/data_parallel/used_map.h"
#include "worker/training/tensors/averages/gradient_hooks.h"
#include "worker/training/tensors/averages/gradient_origins.h"
#include "worker/training/tensors/averages/named_parameter.h"
#include "worker/training/tensors/averages/same_weights.h"

namespace ddprun::worker {

class GradientReducer {
 public:
  struct Options {
    std::vector<std::size_t> first_limits_bytes;   // of the buckets before; none: no limit
    std::vector<std::size_t> bucket_limits_bytes;  // of the rebuilt buckets; the last repeats
    bool limits_from_the_last = false;             // plan_ready_buckets_backwards()
    GradientMode mode = GradientMode::kView;
    GraphMode graph = GraphMode::kDefault;
    std::vector<bool> sparse;          // by parameter
    std::vector<bool> delayed;         // by parameter: it travels after the others
    bool skip_unused_buckets = false;  // a bucket whose parameters are all unused is not summed
    bool alike = true;                 // all ranks have the same weights at construction
    std::vector<NamedParameter> frozen = {};  // are compared with the other ranks', too
  };

  // All ranks must call it. Each of `parameters` must need a gradient, and lie on a device
  // of the collective's kind. It must have a dtype that summable() knows.
  GradientReducer(std::vector<NamedTensor> parameters, Collective& collective, Options options);
  GradientReducer(const GradientReducer&) = delete;
  GradientReducer& operator=(const GradientReducer&) = delete;
  GradientReducer(GradientReducer&&) = delete;
  GradientReducer& operator=(GradientReducer&&) = delete;
  ~GradientReducer() = default;  // removes the hooks

  // Call before each forward with gradients. Throws std::runtime_error if the last pass is
  // unfinished. The first call after a summed pass rebuilds the buckets in rank 0's order: then all
  // ranks must call it.
  void begin_pass();

  // Call after a forward whose gradients shall be averaged, with its outputs. Without it the next
  // backward() adds to this rank's own gradients.
  void arm(std::span<const at::Tensor> outputs);
  // Call before a forward under NoSync. Throws std::runtime_error if steps were made on gradients
  // of passes under NoSync, twice in a row. No sum would ever tell that the ranks have parted.
  void check_silent();
  // Call after a forward under NoSync, instead of arm().
  void begin_silent_pass() { origins_.begin(false); }
  // arm() was called, and no backward() has begun since.
  bool waits_for_backward() const { return pass_.state() == Pass::State::kArmed; }

  // backward() has begun, below the outputs of forward(). Only a pass that waits for its end needs
  // it.
  void on_backward();

  // This rank has no batch, others have: sums zeros as their backward() sums gradients. `.grad` has
  // the average afterwards. Throws std::runtime_error with a static graph before this rank's first
  // pass.
  void shadow_pass();

  // Gradients become averages by this divisor from the next backward() on, where no hook divides
  // them.
  void divide_by(int divisor) { sums_.divide_by(divisor); }

  // Takes a hook instead of the plain sums (bucket.h). Once, and before the first pass.
  void set_comm_hook(CommHook hook);

  // Makes the step of each parameter as soon as its sum is complete, in backward(). Once, and
  // before the first pass. Afterwards its gradient is undefined.
  void set_step(ParameterStep step);
  bool steps_itself() const { return static_cast<bool>(step_); }

  // Takes rank 0's plan, as if a pass had been summed and the buckets rebuilt
  // (DataParallel::restore_buckets).
  bool restore(const BucketPlan& plan);

  // Adds what it knows of the buckets and of the latest pass.
  void write(LogRecord& record);

  // Gives the pass up. All ranks must call it; those that wait in a sum of it throw first. All
  // gradients are undefined after it. Throws std::runtime_error on all ranks if one of them has
  // summed more passes or made more steps than another. Throws, too, if one has stepped parameters
  // of this pass.
  void reset();

  // The program makes a step with the sums of this pass, on these parameters. Without the call the
  // step counts when the next pass begins.
  void count_step_made(std::span<const std::size_t> stepped = {});
  // The settings of that step are compared with those of the other ranks.
  void note_settings(const torch::optim::Optimizer& optimizer) { weights_.add_settings(optimizer); }

  // Throws std::runtime_error if backward() left parameters without a gradient, and names them.
  // Throws, too, if it ended by an error of ours.
  void check_finished();
  // The one place that says whether a step may be made. Throws as check_finished(). Throws, too, if
  // a `.grad` has this rank's own gradient in it, and not the average of all ranks.
  void check_averaged();
  // Ranks may have unlike weights from now on; or they have the same ones again. All must call
  // them.
  void stop_comparing() { weights_.stop(); }
  void start_comparing() { weights_.start(); }
  // The message that check_finished() throws. Nothing: it throws nothing.
  std::optional<std::string> why_unfinished() const;
  // An exception of this pass has told the program that it is unfinished.
  bool program_knows() const { return pass_.told(); }
  // Throws if a sum has failed since, on any device.
  void check_collectives() const { collectives_.check(); }
  const std::vector<c10::Device>& devices() const { return collectives_.devices(); }
  const BucketPlan& plan() const { return buckets_.plan(); }
  bool rebuilt() const { return layout_.rebuilt(); }
  // The parameters whose hooks ran in the latest armed pass, in their order; one may come twice.
  const std::vector<std::size_t>& gradient_order() const { return layout_.hook_order(); }

 private:
  // Does a part of a pass. An exception of it fails the pass.
  template <typename Part>
  void guard(const Part& part) {
    try {
      part();
    } catch (...) {
      pass_.threw();
      throw;
    }
  }
  // One rank: its gradients are the averages.
  bool alone() const { return collective_.world_size() == 1; }
  PassName name() const;
  std::unique_lock<std::mutex> turn();
  void on_gradient(std::size_t parameter);
  void take_gradient(std::size_t parameter);
  void take_all();
  void mark_ready(std::size_t parameter);
  void launch_ready_buckets();
  void finish_after_backward();
  std::vector<bool> wholly_unused_buckets() const;
  void finish();
  void wait_for_sums();
  void compare_weights();
  void give_back(std::size_t bucket);
  void step(std::size_t parameter);
  void check_same_progress();
  void rebuild();
  BucketPlan plan_of_root(const BucketPlan& mine) const;
  void adopt(BucketPlan plan);

  Collective& collective_;
  Options options_;
  DeviceCollectives collectives_;
  GradientBuckets buckets_;
  BucketLayout layout_;
  BucketQueue queue_;
  BucketSums sums_;
  ReadyEvents ready_;
  std::mutex hooks_mutex_;  // of several devices
  ParameterStep step_;
  std::optional<UsedMap> used_;           // where a parameter may be unused
  std::vector<NamedParameter> compared_;  // the parameters, then the frozen ones
  GradientHooks hooks_;
  GradientOrigins origins_;
  SameWeights weights_;
  std::unique_ptr<Readiness> readiness_;
  PassTimes times_;
  Pass pass_;
};

}  // namespace ddprun::worker
