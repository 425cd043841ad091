// pipeline: a deep model of the next word, of which each worker has some of the layers. The first
// one has the words, the last one the scores and the loss. A batch goes through the workers in
// micro-batches, so that they work at the same time.
//
//   ddprun --standalone --nproc-per-node=4 build/bin/pipeline --schedule 1f1b
//
// examples/pytorch/pipeline.py prints the same.
#include <ddprun/optimizers.h>
#include <ddprun/pipeline.h>
#include <fmt/format.h>
#include <torch/torch.h>

#include <string>
#include <vector>

#include "examples/common/program.h"

namespace {

using namespace ddprun;  // NOLINT(google-build-using-namespace)
using torch::nn::LayerNormOptions;
using torch::nn::Linear;

struct Options {
  int steps = 60, batch_size = 16, length = 16, words = 64, width = 32;
  int layers = 8, micro_batches = 8;
  double lr = 0.5;
  std::string schedule = "1f1b";
};

struct BlockImpl : torch::nn::Module {
  explicit BlockImpl(std::int64_t width)
      : norm(register_module("norm", torch::nn::LayerNorm(LayerNormOptions({width})))),
        up(register_module("up", Linear(width, 4 * width))),
        down(register_module("down", Linear(4 * width, width))) {}
  at::Tensor forward(const at::Tensor& x) { return x + down(torch::relu(up(norm(x)))); }

  torch::nn::LayerNorm norm;
  Linear up, down;
};
TORCH_MODULE(Block);

// Each layer has a seed of its own, so it is the same on any number of workers.
template <typename Layer, typename... Sizes>
Layer made(int seed, Sizes... sizes) {
  torch::manual_seed(seed);
  return Layer(sizes...);
}

// A worker's layers: ids, or what the worker before returns, become the next one's input, or
// scores.
torch::nn::Sequential stage_of(const Options& options, const Collective& ranks) {
  const int each = options.layers / ranks.world_size(), first = ranks.rank() * each;
  torch::nn::Sequential layers;
  if (first == 0) layers->push_back(made<torch::nn::Embedding>(1, options.words, options.width));
  for (int i = first; i < first + each; ++i) layers->push_back(made<Block>(10 + i, options.width));
  if (ranks.rank() == ranks.world_size() - 1)
    layers->push_back(made<Linear>(2, options.width, options.words));
  return layers;
}

// A text in which a word says which one comes next.
at::Tensor text_of(const Options& options, int step) {
  torch::manual_seed(100 + step);
  at::Tensor word = torch::randint(options.words, {options.batch_size, 1}, torch::kLong);
  std::vector<at::Tensor> text{word};
  for (int i = 0; i < options.length; ++i)
    text.push_back(word = (word * 5 + 3).remainder(options.words));
  return torch::cat(text, 1);
}

at::Tensor loss_of(const at::Tensor& scores, const at::Tensor& next) {
  return torch::nn::functional::cross_entropy(scores.flatten(0, 1), next.flatten());
}

void run(const Process& process, const Options& options) {
  Collective& ranks = *process.collective;
  if (options.layers % ranks.world_size() != 0)
    throw examples::UsageError(fmt::format("--layers: {} given, expected a multiple of {} workers",
                                           options.layers, ranks.world_size()));
  const at::Device device = ranks.device() == Device::kCuda ? at::kCUDA : at::kCPU;
  auto stage = stage_of(options, ranks);
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
      examples::say(process, fmt::format("step {} loss={}", step + 1, pipeline.from_last(loss)));
  }
  examples::say(process, fmt::format("most micro-batches alive: {}", pipeline.most_live()));
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  examples::Flags flags("Trains a model of the next word, whose layers are shared out to workers.");
  flags.word("--schedule", options.schedule, {"1f1b", "gpipe"},
             "the order of micro-batches: 1f1b; gpipe (1f1b)");
  flags.count("--micro-batches", options.micro_batches, "parts of a batch (8)");
  flags.count("--layers", options.layers, "blocks, of all workers together (8)");
  flags.count("--steps", options.steps, "batches (60)");
  flags.count("--batch-size", options.batch_size, "texts a step (16)");
  flags.count("--length", options.length, "words of a text (16)");
  flags.count("--words", options.words, "that there are (64)");
  flags.count("--width", options.width, "features of a word (32)");
  flags.rate("--lr", options.lr, "learning rate (0.5)");
  return examples::run_training(
      "pipeline", flags, argc, argv, [] {}, [&](Process& process) { run(process, options); });
}
