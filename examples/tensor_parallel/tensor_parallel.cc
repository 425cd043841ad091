// tensor_parallel: a model of the next word, of which each worker has a part of every layer. Half
// of the words go to half of the workers, and so do the features inside a block. All workers see
// the same batch. With --sequence a worker has a part of the sequence between the layers, too.
//
//   ddprun --standalone --nproc-per-node=4 build/bin/tensor_parallel --sequence
//
// examples/pytorch/tensor_parallel.py prints the same.
#include <ddprun/optimizers.h>
#include <ddprun/tensor_parallel.h>
#include <fmt/format.h>

#include <optional>
#include <vector>

#include "examples/common/classifier.h"
#include "examples/common/program.h"

namespace {

using namespace ddprun;  // NOLINT(google-build-using-namespace)
using torch::nn::EmbeddingOptions;
using torch::nn::LayerNormOptions;
using torch::nn::LinearOptions;

struct Options {
  int steps = 60, batch_size = 8, length = 16, words = 64, width = 32;
  double lr = 1;
  bool sequence = false;
};

struct NetImpl : torch::nn::Module {
  NetImpl(std::int64_t words_, std::int64_t width, const TensorGroup& group)
      : words(register_module("words", VocabEmbedding(EmbeddingOptions(words_, width), group))),
        up(register_module("up", ColumnLinear(LinearOptions(width, 4 * width), group))),
        down(register_module("down", RowLinear(LinearOptions(4 * width, width), group))),
        norm(register_module("norm", SequenceLayerNorm(LayerNormOptions({width}), group))),
        head(register_module("head",
                             ColumnLinear(LinearOptions(width, words_).bias(false), group))) {}

  // This worker's part of the scores, (words in the batch, words/workers).
  at::Tensor forward(const at::Tensor& ids) {
    const auto x = words(ids);
    return head(norm(x + down(torch::relu(up(x))))).flatten(0, 1);
  }

  VocabEmbedding words;
  ColumnLinear up;
  RowLinear down;
  SequenceLayerNorm norm;
  ColumnLinear head;
};
TORCH_MODULE(Net);

// A text in which a word says which one comes next.
at::Tensor text_of(const Options& options, int step) {
  torch::manual_seed(100 + step);
  at::Tensor word = torch::randint(options.words, {options.batch_size, 1}, torch::kLong);
  std::vector<at::Tensor> text{word};
  for (int i = 0; i < options.length; ++i)
    text.push_back(word = (word * 5 + 3).remainder(options.words));
  return torch::cat(text, 1);
}

void say_numbers(const Process& process, const Net& net) {
  std::int64_t mine = 0;
  for (const auto& parameter : net->parameters()) mine += parameter.numel();
  examples::say(process, fmt::format("numbers of a worker: {}", mine));
}

void run(const Process& process, const Options& options) {
  const TensorGroup group(*process.collective,
                          options.sequence ? std::optional<std::int64_t>(1) : std::nullopt);
  torch::manual_seed(1);
  Net net(options.words, options.width, group);
  SGD optimizer(net->parameters(), SGD::Options(options.lr));
  for (int step = 0; step < options.steps; ++step) {
    const auto text = text_of(options, step).to(net->head->weight.device());
    optimizer.zero_grad();
    const auto scores = net->forward(text.narrow(1, 0, options.length));
    const auto loss =
        parallel_cross_entropy(scores, text.narrow(1, 1, options.length).flatten(), group);
    loss.backward();
    optimizer.step();
    if ((step + 1) % 10 == 0)
      examples::say(process, fmt::format("step {} loss={}", step + 1, loss.item<double>()));
  }
  say_numbers(process, net);
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  examples::Flags flags("Trains a model of the next word, whose layers are split over workers.");
  flags.on("--sequence", options.sequence, "split the sequence between the layers, too");
  flags.count("--steps", options.steps, "batches (60)");
  flags.count("--batch-size", options.batch_size, "texts a step, of all workers together (8)");
  flags.count("--length", options.length, "words of a text (16)");
  flags.count("--words", options.words, "that there are (64)");
  flags.count("--width", options.width, "features of a word (32)");
  flags.rate("--lr", options.lr, "learning rate (1)");
  return examples::run_training(
      "tensor_parallel", flags, argc, argv, [] {},
      [&](Process& process) { run(process, options); });
}
