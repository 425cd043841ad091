// pipeline: a deep model of the next word, of which each worker has some of the layers. The first
// one has the words, the last one the scores and the loss. A batch goes through the workers in
// micro-batches, so that they work at the same time.
//
//   ddprun --standalone --nproc-per-node=4 build/bin/pipeline --schedule 1f1b
//
// With --halves each worker has all layers, in two halves, as for two devices; here both are one.
// Workers share the batch, and DataParallel averages the gradients of both halves.
//
// examples/pytorch/pipeline.py prints the same.
#include <ddprun/optimizers.h>
#include <ddprun/pipeline.h>
#include <fmt/format.h>
#include <torch/torch.h>

#include "examples/common/program.h"
#include "examples/pipeline/halves.h"
#include "examples/pipeline/layers.h"

namespace {

using namespace ddprun;            // NOLINT(google-build-using-namespace)
using namespace ddprun::examples;  // NOLINT(google-build-using-namespace)

void run_stages(const Process& process, const PipelineFlags& options) {
  Collective& ranks = *process.collective;
  if (options.layers % ranks.world_size() != 0)
    throw UsageError(fmt::format("--layers: {} given, expected a multiple of {} workers",
                                 options.layers, ranks.world_size()));
  const at::Device device = device_of(ranks);
  auto stage = stage_of(options, ranks.rank(), ranks.world_size());
  stage->to(device);
  const auto schedule = options.schedule == "gpipe" ? PipelineSchedule::kGPipe
                                                    : PipelineSchedule::kOneForwardOneBackward;
  Pipeline pipeline(pipeline_stage(stage), ranks, loss_of,
                    {.micro_batches = options.micro_batches, .schedule = schedule});
  SGD optimizer(stage->parameters(), SGD::Options(options.lr));
  for (int step = 0; step < options.steps; ++step) {
    const auto text = text_of(options, step).to(device);
    optimizer.zero_grad();
    const auto loss = pipeline.forward_backward(text.narrow(1, 0, options.length),
                                                text.narrow(1, 1, options.length));
    optimizer.step();
    if ((step + 1) % 10 == 0)
      say(process, fmt::format("step {} loss={}", step + 1, pipeline.from_last(loss)));
  }
  say(process, fmt::format("most micro-batches alive: {}", pipeline.most_live()));
}

}  // namespace

int main(int argc, char** argv) {
  PipelineFlags options;
  Flags flags("Trains a model of the next word, whose layers are shared out to workers.");
  flags.word("--schedule", options.schedule, {"1f1b", "gpipe"},
             "the order of micro-batches: 1f1b; gpipe (1f1b)");
  flags.on("--halves", options.halves,
           "all layers in each worker, in halves, as for two devices; no micro-batches");
  flags.count("--micro-batches", options.micro_batches, "parts of a batch (8)");
  flags.count("--layers", options.layers, "blocks, of all workers together (8)");
  flags.count("--steps", options.steps, "batches (60)");
  flags.count("--batch-size", options.batch_size, "texts a step (16)");
  flags.count("--length", options.length, "words of a text (16)");
  flags.count("--words", options.words, "that there are (64)");
  flags.count("--width", options.width, "features of a word (32)");
  flags.rate("--lr", options.lr, "learning rate (0.5)");
  return run_training(
      "pipeline", flags, argc, argv, [] {},
      [&](Process& process) { (options.halves ? run_halves : run_stages)(process, options); });
}
