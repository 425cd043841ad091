// gpt: a transformer that learns the next character of a text, on a grid of workers. --mesh says
// what the workers along an axis share out. It is the texts (data) or the layers (pipeline). It is
// the layers' numbers, to store them (sharded) or to compute with them (tensor). The losses are
// those of one worker.
//
//   ddprun --standalone --nproc-per-node=4 build/bin/gpt --mesh=data=2,tensor=2
//
// examples/pytorch/gpt.py prints the same.
#include <ddprun/metrics.h>
#include <fmt/format.h>

#include <memory>
#include <optional>

#include "examples/common/program.h"
#include "examples/gpt/characters.h"
#include "examples/gpt/options.h"
#include "examples/gpt/part_files.h"
#include "examples/gpt/pipeline_training.h"
#include "examples/gpt/sharded_training.h"
#include "examples/gpt/training.h"
#include "examples/gpt/transformer.h"

namespace {

using namespace ddprun;            // NOLINT(google-build-using-namespace)
using namespace ddprun::examples;  // NOLINT(google-build-using-namespace)

// The way of training that the axes ask for.
std::unique_ptr<Training> made_training(const MeshFlag& axes, const Gpt& net,
                                        const TensorGroup& group, const Mesh& mesh,
                                        const GptFlags& flags) {
  const TrainingOptions options{flags.lr, flags.micro_batches};
  const bool shards = axes.has("sharded"), in_stages = axes.has("pipeline");
  Collective& ranks = mesh.along(shards ? "sharded" : "data");
  Collective& stages = mesh.along("pipeline");
  if (shards && in_stages)
    return std::make_unique<ShardedPipelineTraining>(net, group, ranks, stages, options);
  if (shards) return std::make_unique<ShardedTraining>(net, group, ranks, options);
  if (in_stages) return std::make_unique<PipelineTraining>(net, group, ranks, stages, options);
  return std::make_unique<DataTraining>(net, group, ranks, options);
}

void train(const Process& process, const GptFlags& flags, const Characters& text) {
  Collective& all = *process.collective;
  const MeshFlag axes = checked_mesh(flags, all.world_size());
  const Mesh mesh(all, axes.all_axes());
  const TensorGroup group(mesh.along("tensor"));
  const bool shards = axes.has("sharded");
  Collective& places = mesh.along(shards ? "sharded" : "data");  // of the texts
  Collective& stages = mesh.along("pipeline");
  const Gpt net(GptOptions{flags.width, flags.heads, flags.layers, flags.length, stages.rank(),
                           stages.world_size()},
                group);
  const at::Device device = net->parameters()[0].device();
  const auto training = made_training(axes, net, group, mesh, flags);
  const int part = shards ? all.rank() : group.rank() + group.size() * stages.rank();
  const PartFiles files(flags.checkpoint, all, part, "--mesh=" + axes.text);
  const int done = files.resume(training->run());
  if (done > 0) say(process, fmt::format("resumed after step {}", done));
  for (int step = done + 1; step <= flags.steps; ++step) {
    const auto texts = text.batch(step, flags.batch_size, flags.length, places).to(device);
    Mean loss;
    if (const auto mine = training->step(texts)) loss.add(*mine);
    if (step % 10 == 0) {
      const double mean = loss.over(all);
      say(process, fmt::format("step {} loss={}", step, mean));
    }
    if (step % flags.save_every == 0 || step == flags.steps) files.save(training->run(), step);
  }
  say(process, fmt::format("numbers of a worker: {}", training->numbers()));
}

}  // namespace

int main(int argc, char** argv) {
  GptFlags given;
  Flags flags("Trains a transformer of the next character, on a grid of workers.");
  given.add_to(flags);
  std::optional<Characters> text;
  const auto load = [&] {
    text.emplace(given.data);
    if (text->size() <= given.length)
      throw UsageError(fmt::format("--length: {} given, expected less than the {} characters of {}",
                                   given.length, text->size(), given.data.string()));
  };
  return run_training("gpt", flags, argc, argv, load,
                      [&](const Process& process) { train(process, given, *text); });
}
