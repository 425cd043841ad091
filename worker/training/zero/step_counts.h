// How often Adam has stepped each parameter, on the parameter's device. A CUDA graph repeats what
// it has captured. A number of the host would stay as it was there.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include <cstdint>
#include <map>
#include <utility>

namespace ddprun::worker {

// The counts of one captured step. Its optimizers must outlive it. One thread at a time.
class StepCounts {
 public:
  enum class Mode : std::uint8_t { kRuns, kIsCaptured };

  // While it lives, the optimizers of this process count here. Throws std::logic_error if those of
  // another step do.
  class Use {
   public:
    Use(StepCounts& counts, Mode mode);
    Use(const Use&) = delete;
    Use& operator=(const Use&) = delete;
    Use(Use&&) = delete;
    Use& operator=(Use&&) = delete;
    ~Use();

   private:
    StepCounts& counts_;
  };
  // Null if optimizers count on the host alone.
  static StepCounts* current();
  // Throws std::runtime_error if a graph captures the step, which `what` then cannot be a part of.
  static void refuse_in_a_capture(const char* what);

  bool is_captured() const { return mode_ == Mode::kIsCaptured; }

  // Returns the count of a parameter's steps: a number of float32 on its device. The caller adds
  // one for this step. `steps`: those before, by the optimizer's state.
  at::Tensor of(torch::optim::Optimizer& optimizer, const at::Tensor& parameter,
                std::int64_t steps);

  // The captured step will be made once more. Takes the optimizers' own counts, should they have
  // made steps in another way.
  void before_replay();
  // The captured step was made once more. Adds it to the optimizers' states.
  void replayed();

 private:
  struct Count {
    at::Tensor on_device;
    std::int64_t on_host = 0;   // as the optimizer's state had it
    std::int64_t in_graph = 0;  // steps of the captured one
  };

  std::map<std::pair<torch::optim::Optimizer*, at::TensorImpl*>, Count> counts_;
  Mode mode_ = Mode::kRuns;
};

}  // namespace ddprun::worker
