// A model that is cut into stages, since it is too large for a device. Each rank of a group has
// one. A batch is cut into micro-batches, so that the stages work at the same time. Activations go
// from a stage to the next one, and their gradients come back. See Huang et al.: "GPipe: Efficient
// Training of Giant Neural Networks using Pipeline Parallelism", 2019. For 1F1B see Narayanan et
// al.: "PipeDream: Generalized Pipeline Parallelism for DNN Training", 2019. The numbers are those
// of PyTorch 2.11's torch.distributed.pipelining: ScheduleGPipe, Schedule1F1B.
//
//   Net net(part_of_the_layers(ranks.rank()));  // rank 0 has the first ones
//   Pipeline pipeline(pipeline_stage(net), ranks, loss_of, {.micro_batches = 8});
//   for (…) {
//     optimizer.zero_grad();
//     const auto loss = pipeline.forward_backward(inputs, targets);  // the last rank has it
//     optimizer.step();                                             // of this rank's layers
//   }
//
// Each group along the "pipeline" axis of a Mesh has a Pipeline of its own. A stage may have
// layers that are split along another axis, or be trained by a DataParallel along another one:
//
//   DataParallel parallel(net.ptr(), mesh.along("data"));
//   Pipeline pipeline(pipeline_stage(net, parallel), mesh.along("pipeline"), loss_of, options);
//   pipeline.forward_backward(inputs, targets);  // its end averages the gradients, once
//   parallel.step(optimizer);
//
// In its place a ShardedParallel may shard the stage's parameters over the ranks of that axis.
//
// One tensor goes from stage to stage. All ranks must call the same, on the training thread.
// Stages, batches and activations that do not fit are std::invalid_argument. Calls that are not
// possible are std::logic_error. An error in a batch is seen by one rank, which must end. The
// others throw CollectiveError then. docs/pipeline.md says what it costs.
#pragma once

#include <ATen/core/Tensor.h>
#include <ddprun/collective.h>
#include <ddprun/data_parallel.h>

#include <functional>
#include <memory>
#include <utility>
#include <vector>

namespace ddprun::worker {
class PipelineRun;
}  // namespace ddprun::worker

namespace ddprun {

class ShardedParallel;

// The order in which a stage does its micro-batches.
enum class PipelineSchedule {
  kGPipe,  // all forwards, then all backwards; the activations of all micro-batches are alive
  kOneForwardOneBackward,  // a backward as soon as it can be: 1F1B. As fast, with fewer alive
};

// Options of Pipeline. Give equal ones on all ranks.
struct PipelineOptions {
  int micro_batches = 4;  // of a batch, 1 or more; they divide its rows
  // The order of forwards and backwards.
  PipelineSchedule schedule = PipelineSchedule::kOneForwardOneBackward;
  // The loss is a mean over samples. That of the batch is the mean over micro-batches, and the
  // gradients are divided by their number. False: both are sums. PyTorch's scale_grads.
  bool mean_loss = true;
};

// The loss of a micro-batch, a scalar, from what the last stage returns and its part of the
// targets.
using PipelineLoss =
    std::function<at::Tensor(const at::Tensor& outputs, const at::Tensor& targets)>;

// The part of the model that a rank has. pipeline_stage() makes it of a module. At most one of
// `parallel` and `sharded` is set.
struct PipelineStage {
  // Computes a micro-batch from what the stage before it returns.
  std::function<at::Tensor(const at::Tensor&)> forward;
  std::vector<at::Tensor> parameters;  // whose gradients are divided; see mean_loss
  DataParallel* parallel = nullptr;    // trains the stage with other ranks; null: nobody does
  ShardedParallel* sharded = nullptr;  // shards it over other ranks; null: nobody does
};

// Makes a stage of a module whose forward() takes a tensor and returns one. It shares the module.
template <typename Module>
PipelineStage pipeline_stage(Module module) {
  PipelineStage stage{.forward = {}, .parameters = module->parameters()};
  stage.forward = [module = std::move(module)](const at::Tensor& x) mutable -> at::Tensor {
    return module->forward(x);
  };
  return stage;
}

// Makes a stage of the module of `parallel`, which must outlive it.
template <typename Module>
PipelineStage pipeline_stage(Module module, DataParallel& parallel) {
  PipelineStage stage{.forward = {}, .parameters = module->parameters(), .parallel = &parallel};
  stage.forward = [module = std::move(module),
                   &parallel](const at::Tensor& x) mutable -> at::Tensor {
    return parallel.forward(module, x);
  };
  return stage;
}

// Makes a stage of units of `sharded`, which must outlive it. `forward` calls them through it.
PipelineStage pipeline_stage(std::function<at::Tensor(const at::Tensor&)> forward,
                             ShardedParallel& sharded);

// The training of a model whose stages are on different ranks. See the head of this file. The
// program owns it.
class Pipeline {
 public:
  // Takes the ranks, which must outlive this: stage s is on rank s. The last rank's `loss` counts,
  // and forward() alone needs none. All ranks must call it. Throws std::invalid_argument on all of
  // them unless all give the same options. So it does for a DataParallel whose forwards may not run
  // ahead of their backwards (forwards_may_run_ahead()). On CPU, memory that is freed stays in the
  // process from here on, as DataParallelOptions::keep_freed_memory says.
  Pipeline(PipelineStage stage, Collective& ranks, PipelineLoss loss,
           const PipelineOptions& options = {});
  Pipeline(const Pipeline&) = delete;
  Pipeline& operator=(const Pipeline&) = delete;
  Pipeline(Pipeline&&) = delete;
  Pipeline& operator=(Pipeline&&) = delete;
  // Calls no other rank.
  ~Pipeline();

  // Makes forward and backward of a batch. `.grad` of the stage's parameters is that of the batch's
  // loss then: call zero_grad() before. `inputs`: (rows, ...), for the first stage. `targets`:
  // (rows, ...), for the last one. Others ignore theirs, which may be undefined. Returns the loss
  // on the last stage, without a graph, and an undefined tensor on the others. All ranks must call
  // it. It throws on the rank that sees the error, std::invalid_argument in these cases:
  // - The micro-batches do not divide the rows.
  // - A stage's activations have another dtype or other sizes than in the first call. Or they need
  //   a gradient, and did not then, or the other way round.
  // - The stage cannot take the activations of the one before.
  // - The loss is no scalar.
  // Throws std::logic_error on all ranks if the last one has no loss. So it does on a stage's rank
  // whose DataParallel has got step_in_backward() since, or has a Join or a NoSync.
  at::Tensor forward_backward(const at::Tensor& inputs, const at::Tensor& targets);

  // Makes forward of a batch, without gradients. Its rows may be others than those of
  // forward_backward(), but the same in all calls. Returns what the last stage returns for the
  // whole batch there, and an undefined tensor on the others. All ranks must call it. Throws as
  // forward_backward() does.
  at::Tensor forward(const at::Tensor& inputs);

  // Gives the last stage's scalar to all ranks, such as the loss, and returns it. `mine` is ignored
  // on the others. All ranks must call it.
  double from_last(const at::Tensor& mine);

  // Says whether this rank has the first stage.
  bool is_first() const;
  // Says whether this rank has the last stage.
  bool is_last() const;

  // Returns how many micro-batches had activations here at the same time, at most, in the latest
  // forward_backward(). GPipe: all of them. 1F1B: as many as there are stages from this one on, or
  // all micro-batches if these are fewer.
  int most_live() const;

 private:
  std::unique_ptr<worker::PipelineRun> run_;
};

}  // namespace ddprun
