// Training in stages. All workers must call the same. The training thread.
#pragma once

#include <ddprun/pipeline.h>

#include <optional>
#include <utility>

#include "examples/gpt/training.h"

namespace ddprun::examples {

// Each worker along `stages` has some of the layers, and trains them on micro-batches. Each one
// along `ranks` has other texts.
class PipelineTraining : public Training {
 public:
  PipelineTraining(Gpt net, const TensorGroup& group, Collective& ranks, Collective& stages,
                   const TrainingOptions& options)
      : net_(std::move(net)),
        ranks_(ranks),
        parallel_(net_.ptr(), ranks),
        pipeline_(pipeline_stage(net_, parallel_), stages,
                  [group](const at::Tensor& scores, const at::Tensor& targets) {
                    return loss_of(scores, targets, group);
                  },
                  {.micro_batches = options.micro_batches}),
        optimizer_(net_->parameters(), AdamW::Options(options.lr)) {}

  std::optional<double> step(const at::Tensor& text) override {
    optimizer_.zero_grad();
    const auto loss = pipeline_.forward_backward(inputs_of(text), targets_of(text));
    parallel_.step(optimizer_);
    if (!loss.defined()) return {};
    return loss.item<double>();
  }
  CheckpointRun run() override { return {*net_, optimizer_, ranks_, &parallel_}; }

 private:
  Gpt net_;
  Collective& ranks_;
  DataParallel parallel_;
  Pipeline pipeline_;
  AdamW optimizer_;
};

}  // namespace ddprun::examples
