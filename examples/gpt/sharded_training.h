// Training with a part of each unit on each worker. All workers must call the same. The training
// thread.
#pragma once

#include <ddprun/sharded_parallel.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "examples/gpt/training.h"

namespace ddprun::examples {

// The net, of whose units each worker along `ranks` has a part. It saves its own part.
class ShardedGpt {
 public:
  ShardedGpt(Gpt net, Collective& ranks)
      : net_(std::move(net)),
        alone_(make_alone_collective()),
        sharded_(net_.ptr(), ranks, units()) {
    for (std::size_t unit = 0; unit < sharded_.shards().size(); ++unit)
      parts_.register_parameter(units().at(unit), sharded_.shards()[unit]);
  }

  at::Tensor forward(const at::Tensor& x) {
    const auto call = [this](auto& unit, const at::Tensor& input) {
      return sharded_.forward(unit, input);
    };
    return net_->through(call, x);
  }
  ShardedParallel& parallel() { return sharded_; }
  CheckpointRun run(AdamW& optimizer) { return {parts_, optimizer, *alone_}; }

 private:
  std::vector<std::string> units() const {
    std::vector<std::string> names;
    for (const auto& unit : net_->named_children()) names.push_back(unit.key());
    return names;
  }

  Gpt net_;
  std::unique_ptr<Collective> alone_;
  ShardedParallel sharded_;
  torch::nn::Module parts_;
};

// Each worker along `ranks` has a part of each unit, and other texts.
class ShardedTraining : public Training {
 public:
  ShardedTraining(Gpt net, const TensorGroup& group, Collective& ranks,
                  const TrainingOptions& options)
      : net_(std::move(net), ranks),
        group_(group),
        optimizer_(net_.parallel().shards(), AdamW::Options(options.lr)) {}

  std::optional<double> step(const at::Tensor& text) override {
    optimizer_.zero_grad();
    const auto loss = loss_of(net_.forward(inputs_of(text)), targets_of(text), group_);
    loss.backward();
    net_.parallel().step(optimizer_);
    return loss.item<double>();
  }
  CheckpointRun run() override { return net_.run(optimizer_); }

 private:
  ShardedGpt net_;
  TensorGroup group_;
  AdamW optimizer_;
};

}  // namespace ddprun::examples
