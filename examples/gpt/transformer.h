// A transformer of the next character, as GPT. Its layers are split over a TensorGroup, and it has
// those of one stage. With a group of one rank and one stage it is a plain one. Its units are
// "start", "block0", … and "end". examples/pytorch/gpt_net.py has the same ones.
#pragma once

#include <ddprun/tensor_parallel.h>
#include <torch/nn.h>
#include <torch/utils.h>

#include <cstdint>
#include <string>
#include <vector>

#include "examples/gpt/options.h"

namespace ddprun::examples {

using torch::nn::LayerNormOptions;
using torch::nn::LinearOptions;

// The sizes of the whole, and the stage that a worker has of it.
struct GptOptions {
  std::int64_t width = 64, heads = 4, layers = 4, length = 64;
  int stage = 0, stages = 1;
};

// From characters [batch, length] to features [batch, length, width].
struct StartImpl : torch::nn::Module {
  StartImpl(const GptOptions& options, const TensorGroup& group)
      : words(VocabEmbedding(torch::nn::EmbeddingOptions(kCharacters, options.width), group)),
        places(torch::nn::Embedding(options.length, options.width)) {
    register_module("words", words);
    register_module("places", places)->to(words->weight.device());
  }
  at::Tensor forward(const at::Tensor& ids) {
    return words(ids) + places(torch::arange(ids.size(1), ids.options()));
  }
  VocabEmbedding words;
  torch::nn::Embedding places;
};
TORCH_MODULE(Start);

struct TransformerBlockImpl : torch::nn::Module {
  TransformerBlockImpl(const GptOptions& options, const TensorGroup& group)
      : width(options.width),
        heads(options.heads),
        norm1(register_module("norm1", SequenceLayerNorm(LayerNormOptions({width}), group))),
        qkv(register_module("qkv", ColumnLinear(LinearOptions(width, 3 * width), group))),
        out(register_module("out", RowLinear(LinearOptions(width, width), group))),
        norm2(register_module("norm2", SequenceLayerNorm(LayerNormOptions({width}), group))),
        up(register_module("up", ColumnLinear(LinearOptions(width, 4 * width), group))),
        down(register_module("down", RowLinear(LinearOptions(4 * width, width), group))) {}

  at::Tensor forward(at::Tensor x) {
    // This worker's heads, each with its query, key and value.
    const auto parts = qkv(norm1(x)).unflatten(-1, {-1, 3, width / heads}).permute({3, 0, 2, 1, 4});
    const auto seen = at::scaled_dot_product_attention(parts[0], parts[1], parts[2], {}, 0, true);
    x = x + out(seen.transpose(1, 2).flatten(2));
    return x + down(torch::gelu(up(norm2(x))));
  }

  std::int64_t width, heads;
  SequenceLayerNorm norm1;
  ColumnLinear qkv;
  RowLinear out;
  SequenceLayerNorm norm2;
  ColumnLinear up;
  RowLinear down;
};
TORCH_MODULE(TransformerBlock);

// From features to this worker's part of the scores, [batch x length, characters/ranks].
struct EndImpl : torch::nn::Module {
  EndImpl(const GptOptions& options, const TensorGroup& group)
      : norm(SequenceLayerNorm(LayerNormOptions({options.width}), group)),
        head(ColumnLinear(LinearOptions(options.width, kCharacters).bias(false), group)) {
    register_module("norm", norm);
    register_module("head", head);
  }
  at::Tensor forward(const at::Tensor& x) { return head(norm(x)).flatten(0, 1); }
  SequenceLayerNorm norm;
  ColumnLinear head;
};
TORCH_MODULE(End);

// The units of one stage. Each is seeded by itself, so that a unit's weights are the same in each
// mesh.
struct GptImpl : torch::nn::Module {
  GptImpl(const GptOptions& options, const TensorGroup& group) {
    const std::int64_t layers = options.layers / options.stages, first = layers * options.stage;
    torch::manual_seed(1);
    if (options.stage == 0) start = register_module("start", Start(options, group));
    for (std::int64_t layer = first; layer < first + layers; ++layer) {
      torch::manual_seed(static_cast<std::uint64_t>(2 + layer));
      blocks.push_back(
          register_module("block" + std::to_string(layer), TransformerBlock(options, group)));
    }
    torch::manual_seed(static_cast<std::uint64_t>(2 + options.layers));
    if (options.stage == options.stages - 1) end = register_module("end", End(options, group));
  }

  // Calls unit by unit, by `call(unit, input)`.
  template <typename Call>
  at::Tensor through(const Call& call, at::Tensor x) {
    if (start) x = call(start, x);
    for (TransformerBlock& block : blocks) x = call(block, x);
    return end ? call(end, x) : x;
  }
  at::Tensor forward(const at::Tensor& x) {
    return through([](auto& unit, const at::Tensor& input) { return unit->forward(input); }, x);
  }

  Start start{nullptr};
  std::vector<TransformerBlock> blocks;
  End end{nullptr};
};
TORCH_MODULE(Gpt);

}  // namespace ddprun::examples
