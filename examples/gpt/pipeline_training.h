// Training in stages. All workers must call the same. The training thread.
#pragma once

#include <ddprun/pipeline.h>

#include <optional>
#include <utility>

#include "examples/gpt/sharded_training.h"
#include "examples/gpt/training.h"

namespace ddprun::examples {

// The loss of a stage's micro-batch, if the layers are split over `group`.
inline PipelineLoss pipeline_loss(const TensorGroup& group) {
  return [group](const at::Tensor& scores, const at::Tensor& targets) {
    return loss_of(scores, targets, group);
  };
}

// Makes forward, backward and a step. Returns what Training::step() does.
template <typename Parallel>
std::optional<double> pipeline_step(const at::Tensor& text, Pipeline& pipeline, Parallel& parallel,
                                    AdamW& optimizer) {
  optimizer.zero_grad();
  const auto loss = pipeline.forward_backward(inputs_of(text), targets_of(text));
  parallel.step(optimizer);
  if (!loss.defined()) return {};
  return loss.item<double>();
}

// Each worker along `stages` has some of the layers, and trains them on micro-batches. Each one
// along `ranks` has other texts.
class PipelineTraining : public Training {
 public:
  PipelineTraining(Gpt net, const TensorGroup& group, Collective& ranks, Collective& stages,
                   const TrainingOptions& options)
      : net_(std::move(net)),
        ranks_(ranks),
        parallel_(net_.ptr(), ranks),
        pipeline_(pipeline_stage(net_, parallel_), stages, pipeline_loss(group),
                  {.micro_batches = options.micro_batches}),
        optimizer_(net_->parameters(), AdamW::Options(options.lr)) {}

  std::optional<double> step(const at::Tensor& text) override {
    return pipeline_step(text, pipeline_, parallel_, optimizer_);
  }
  CheckpointRun run() override { return {*net_, optimizer_, ranks_, &parallel_}; }

 private:
  Gpt net_;
  Collective& ranks_;
  DataParallel parallel_;
  Pipeline pipeline_;
  AdamW optimizer_;
};

// The same, but each worker along `ranks` has a part of each unit of the stage.
class ShardedPipelineTraining : public Training {
 public:
  ShardedPipelineTraining(Gpt net, const TensorGroup& group, Collective& ranks, Collective& stages,
                          const TrainingOptions& options)
      : net_(std::move(net), ranks),
        pipeline_(pipeline_stage([this](const at::Tensor& x) { return net_.forward(x); },
                                 net_.parallel()),
                  stages, pipeline_loss(group), {.micro_batches = options.micro_batches}),
        optimizer_(net_.parallel().shards(), AdamW::Options(options.lr)) {}

  std::optional<double> step(const at::Tensor& text) override {
    return pipeline_step(text, pipeline_, net_.parallel(), optimizer_);
  }
  CheckpointRun run() override { return net_.run(optimizer_); }

 private:
  ShardedGpt net_;
  Pipeline pipeline_;
  AdamW optimizer_;
};

}  // namespace ddprun::examples
