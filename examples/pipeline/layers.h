// The flags of pipeline, the layers of its model of the next word, and its texts.
#pragma once

#include <ddprun/collective.h>
#include <torch/torch.h>

#include <cstdint>
#include <string>
#include <vector>

namespace ddprun::examples {

using torch::nn::LayerNormOptions;
using torch::nn::Linear;

struct PipelineFlags {
  int steps = 60, batch_size = 16, length = 16, words = 64, width = 32;
  int layers = 8, micro_batches = 8;
  double lr = 0.5;
  std::string schedule = "1f1b";
  bool halves = false;
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

// The layers of a stage: ids, or what the stage before returns, become the next one's input, or
// scores.
inline torch::nn::Sequential stage_of(const PipelineFlags& options, int stage, int stages) {
  const int each = options.layers / stages, first = stage * each;
  torch::nn::Sequential layers;
  if (first == 0) layers->push_back(made<torch::nn::Embedding>(1, options.words, options.width));
  for (int i = first; i < first + each; ++i) layers->push_back(made<Block>(10 + i, options.width));
  if (stage == stages - 1) layers->push_back(made<Linear>(2, options.width, options.words));
  return layers;
}

// A text in which a word says which one comes next.
inline at::Tensor text_of(const PipelineFlags& options, int step) {
  torch::manual_seed(100 + step);
  at::Tensor word = torch::randint(options.words, {options.batch_size, 1}, torch::kLong);
  std::vector<at::Tensor> text{word};
  for (int i = 0; i < options.length; ++i)
    text.push_back(word = (word * 5 + 3).remainder(options.words));
  return torch::cat(text, 1);
}

inline at::Tensor loss_of(const at::Tensor& scores, const at::Tensor& next) {
  return torch::nn::functional::cross_entropy(scores.flatten(0, 1), next.flatten());
}

inline at::Device device_of(const Collective& ranks) {
  return ranks.device() == Device::kCuda ? at::kCUDA : at::kCPU;
}

}  // namespace ddprun::examples
