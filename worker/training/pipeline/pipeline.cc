#include <ddprun/pipeline.h>
#include <ddprun/sharded_parallel.h>

#include <cstring>
#include <span>
#include <utility>

#include "worker/training/pipeline/pipeline_run.h"

namespace ddprun {

PipelineStage pipeline_stage(std::function<at::Tensor(const at::Tensor&)> forward,
                             ShardedParallel& sharded) {
  return {.forward = std::move(forward), .parameters = sharded.shards(), .sharded = &sharded};
}

Pipeline::Pipeline(PipelineStage stage, Collective& ranks, PipelineLoss loss,
                   const PipelineOptions& options)
    : run_(std::make_unique<worker::PipelineRun>(std::move(stage), ranks, std::move(loss),
                                                 options)) {}

Pipeline::~Pipeline() = default;

at::Tensor Pipeline::forward_backward(const at::Tensor& inputs, const at::Tensor& targets) {
  return run_->forward_backward(inputs, targets);
}

at::Tensor Pipeline::forward(const at::Tensor& inputs) { return run_->forward(inputs); }

double Pipeline::from_last(const at::Tensor& mine) {
  double number = run_->is_last() ? mine.item<double>() : 0;
  const auto told =
      run_->ranks().from_root(std::as_bytes(std::span(&number, 1)), run_->ranks().world_size() - 1);
  if (told.size() != sizeof number)
    throw CollectiveError("Pipeline: the last rank sends no number");
  std::memcpy(&number, told.data(), sizeof number);
  return number;
}

bool Pipeline::is_first() const { return run_->is_first(); }

bool Pipeline::is_last() const { return run_->is_last(); }

int Pipeline::most_live() const { return run_->most_live(); }

}  // namespace ddprun
