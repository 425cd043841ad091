// A training step that a GPU runs as one CUDA graph. The host launches it in one call, whatever it
// consists of:
//
//   auto step = captured_step([&] {
//     optimizer.zero_grad();
//     auto loss = torch::nll_loss(parallel.forward(net, images), labels);
//     loss.backward();
//     parallel.step(optimizer);
//     return loss.detach();
//   }, ranks);
//   for (const auto& [next_images, next_labels] : batches) {
//     images.copy_(next_images);
//     labels.copy_(next_labels);
//     auto loss = step();
//   }
//
// A graph repeats what it has captured. So all tensors of the step keep their place. Copy each
// batch into the same ones, and load checkpoints before the first step. The step has the same
// shapes and operations each time.
//
// Numbers of the host stay as they were, like the learning rate. Counts of our Adam's steps go on.
// LibTorch's own Adam, AdamW and Adagrad do not: parallel.step() refuses them, and nobody sees them
// elsewhere, as in a ZeroOptimizer. All that makes the host wait for the GPU is refused:
// find_unused_parameters, GradScaler, item(). power_sgd_hook() sends plain sums for ever, if it did
// so in the capture. Replays have no deadline, no report on ranks that do unlike things, and no
// comparison of weights. log_record() does not see them. While it is called, no other thread steps
// an optimizer.
#pragma once

#include <ATen/core/Tensor.h>
#include <ddprun/collective.h>

#include <functional>
#include <memory>

namespace ddprun {

namespace worker {
class StepRunner;
}

// How captured_step() begins.
struct CapturedStepOptions {
  // Steps that run as they are before the one that is captured, at least 2. PyTorch's DDP wants 11.
  int warm_ups = 11;
};

// The result of captured_step(). A copy is the same step. The collective, and all that the step
// uses, must outlive it. The training thread.
class CapturedStep {
 public:
  // Takes what captured_step() has made.
  explicit CapturedStep(std::shared_ptr<worker::StepRunner> runner);

  // Makes one step. Returns what the step returned. From the capture on that is the same tensor
  // each time, and the next call overwrites it. All ranks must call it. Throws what the step
  // throws. CollectiveError on all ranks if one of them cannot capture its step; then each later
  // call throws it, too. CollectiveError if the collective has failed.
  at::Tensor operator()();

  // Returns whether the next call replays the graph. Never on a CPU. This rank alone.
  bool is_captured() const;

 private:
  std::shared_ptr<worker::StepRunner> runner_;
};

// Makes a step that is captured after the warm-ups, if the ranks have GPUs. On CPUs it runs as it
// is each time. `step` may return an undefined tensor. Throws std::invalid_argument for less than 2
// warm-ups. This rank alone.
CapturedStep captured_step(std::function<at::Tensor()> step, Collective& ranks,
                           CapturedStepOptions options = {});

}  // namespace ddprun
