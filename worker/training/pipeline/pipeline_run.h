// A stage's work in a batch: the actions of its plan, on tensors. Pipeline owns it and calls it on
// the training thread.
#pragma once

#include <ATen/core/Tensor.h>
#include <ddprun/pipeline.h>

#include <optional>
#include <vector>

#include "worker/training/pipeline/activation_link.h"
#include "worker/training/pipeline/pipeline_plan.h"

namespace ddprun::worker {

class PipelineRun {
 public:
  // See Pipeline.
  PipelineRun(PipelineStage stage, Collective& ranks, PipelineLoss loss,
              const PipelineOptions& options);

  at::Tensor forward_backward(const at::Tensor& inputs, const at::Tensor& targets);
  at::Tensor forward(const at::Tensor& inputs);

  Collective& ranks() const { return ranks_; }
  bool is_first() const { return ranks_.rank() == 0; }
  bool is_last() const { return ranks_.rank() == ranks_.world_size() - 1; }
  int most_live() const { return most_live_; }

 private:
  // The ways to the neighbours. Training and forwards alone have their own: sizes may differ.
  struct Links {
    std::optional<ActivationLink> in, out;
  };
  struct MicroBatch {
    at::Tensor input;     // a leaf
    at::Tensor output;    // with its graph; of the last stage its loss
    at::Tensor gradient;  // of the output, and then of the input
  };
  // A batch that is under way.
  struct Batch {
    Links& links;
    std::vector<at::Tensor> inputs, targets;  // by micro-batch; empty: this rank has none
    bool trains;
    std::vector<MicroBatch> micro_batches = {};
    std::vector<at::Tensor> results = {};  // of the last stage: losses, or outputs
    int live = 0;
  };

  void meet();
  Links make_links();
  std::vector<at::Tensor> cut(const at::Tensor& whole, bool needed, const char* what) const;
  void run(PipelineOrder order, Batch& batch);
  void act(const PipelineAction& action, Batch& batch);
  void forward_one(int number, Batch& batch);
  void backward_one(int number, Batch& batch);
  at::Tensor call_stage(const at::Tensor& input, const Links& links);
  at::Tensor loss_of(const at::Tensor& output, const at::Tensor& targets) const;
  void divide_gradients() const;

  PipelineStage stage_;
  Collective& ranks_;
  TensorCollective tensors_;
  PipelineLoss loss_;
  PipelineOptions options_;
  bool has_loss_ = false;  // the last rank
  bool called_ = false;    // the stage has taken a micro-batch
  Links training_, forwards_;
  int most_live_ = 0;
};

}  // namespace ddprun::worker
