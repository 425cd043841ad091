// The ways in which the workers of a mesh train the transformer together. All workers must call the
// same. The training thread.
#pragma once

#include <ddprun/checkpoint.h>
#include <ddprun/data_parallel.h>
#include <ddprun/optimizers.h>
#include <ddprun/tensor_parallel.h>
#include <torch/nn/functional/loss.h>

#include <optional>

#include "examples/gpt/transformer.h"

namespace ddprun::examples {

struct TrainingOptions {
  double lr = 0;
  int micro_batches = 1;  // of a pipeline
};

// A way to train, and what it trains.
class Training {
 public:
  virtual ~Training() = default;
  // Makes a step on texts, [batch, length + 1]. Returns their mean loss; nothing: another stage
  // has it.
  virtual std::optional<double> step(const at::Tensor& text) = 0;
  // Returns what a checkpoint has of this worker. Workers with the same part are its ranks.
  virtual CheckpointRun run() = 0;
  // Returns the numbers that this worker steps.
  std::int64_t numbers() {
    std::int64_t mine = 0;
    for (const at::Tensor& tensor : run().optimizer.param_groups()[0].params())
      mine += tensor.numel();
    return mine;
  }
};

// The mean loss of texts. With one rank it is PyTorch's plain cross entropy, bit for bit.
inline at::Tensor loss_of(const at::Tensor& scores, const at::Tensor& targets,
                          const TensorGroup& group) {
  if (group.size() > 1) return parallel_cross_entropy(scores, targets.flatten(), group);
  return torch::nn::functional::cross_entropy(scores, targets.flatten());
}

inline at::Tensor inputs_of(const at::Tensor& text) { return text.narrow(1, 0, text.size(1) - 1); }
inline at::Tensor targets_of(const at::Tensor& text) { return text.narrow(1, 1, text.size(1) - 1); }

// Each worker along `ranks` has the whole of its part, and other texts.
class DataTraining : public Training {
 public:
  DataTraining(Gpt net, const TensorGroup& group, Collective& ranks, const TrainingOptions& options)
      : net_(std::move(net)),
        group_(group),
        ranks_(ranks),
        parallel_(net_.ptr(), ranks),
        optimizer_(net_->parameters(), AdamW::Options(options.lr)) {}

  std::optional<double> step(const at::Tensor& text) override {
    optimizer_.zero_grad();
    const auto loss = loss_of(parallel_.forward(net_, inputs_of(text)), targets_of(text), group_);
    loss.backward();
    parallel_.step(optimizer_);
    return loss.item<double>();
  }
  CheckpointRun run() override { return {*net_, optimizer_, ranks_, &parallel_}; }

 private:
  Gpt net_;
  TensorGroup group_;
  Collective& ranks_;
  DataParallel parallel_;
  AdamW optimizer_;
};

}  // namespace ddprun::examples
