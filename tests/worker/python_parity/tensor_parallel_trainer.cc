// Trains a small transformer with split layers, as tensor_parallel_trainer.py does with PyTorch's
// parallelize_module(). Prints a line `mode hashes` for each mode. The hashes are of the first
// loss, of the first gradients, and of losses and weights at the end. ddprun starts it, with the
// modes as arguments: tensor, sequence, mesh.
#include <ddprun/data_parallel.h>
#include <ddprun/optimizers.h>
#include <ddprun/tensor_parallel.h>
#include <fmt/format.h>
#include <torch/torch.h>

#include <optional>
#include <string>
#include <vector>

#include "tests/worker/python_parity/parity_net.h"
#include "tests/worker/python_parity/parity_program.h"

namespace ddprun::worker {
namespace {

constexpr std::int64_t kWords = 64, kFeatures = 32, kHeads = 4, kBatch = 3, kSequence = 12;
constexpr int kBlocks = 2, kSteps = 6;

using torch::nn::EmbeddingOptions;
using torch::nn::LayerNormOptions;
using torch::nn::LinearOptions;

struct BlockImpl : torch::nn::Module {
  explicit BlockImpl(const TensorGroup& group)
      : norm1(register_module("norm1", SequenceLayerNorm(LayerNormOptions({kFeatures}), group))),
        qkv(register_module("qkv", ColumnLinear(LinearOptions(kFeatures, 3 * kFeatures), group))),
        out(register_module("out", RowLinear(LinearOptions(kFeatures, kFeatures), group))),
        norm2(register_module("norm2", SequenceLayerNorm(LayerNormOptions({kFeatures}), group))),
        up(register_module("up", ColumnLinear(LinearOptions(kFeatures, 4 * kFeatures), group))),
        down(register_module("down", RowLinear(LinearOptions(4 * kFeatures, kFeatures), group))) {}

  at::Tensor forward(at::Tensor x) {
    // This rank's heads, each with its query, key and value.
    const auto heads =
        qkv(norm1(x)).unflatten(-1, {-1, 3, kFeatures / kHeads}).permute({3, 0, 2, 1, 4});
    const auto seen = at::scaled_dot_product_attention(heads[0], heads[1], heads[2], {}, 0, true);
    x = x + out(seen.transpose(1, 2).flatten(2));
    return x + down(torch::gelu(up(norm2(x))));
  }

  SequenceLayerNorm norm1;
  ColumnLinear qkv;
  RowLinear out;
  SequenceLayerNorm norm2;
  ColumnLinear up;
  RowLinear down;
};
TORCH_MODULE(Block);

struct TransformerImpl : torch::nn::Module {
  explicit TransformerImpl(const TensorGroup& group)
      : words(register_module("words", VocabEmbedding(EmbeddingOptions(kWords, kFeatures), group))),
        norm(SequenceLayerNorm(LayerNormOptions({kFeatures}), group)),
        head(ColumnLinear(LinearOptions(kFeatures, kWords).bias(false), group)) {
    for (int i = 0; i < kBlocks; ++i)
      blocks.push_back(register_module("block" + std::to_string(i), Block(group)));
    register_module("norm", norm);
    register_module("head", head);
  }

  at::Tensor forward(const at::Tensor& ids) {
    at::Tensor x = words(ids);
    for (Block& block : blocks) x = block(x);
    return head(norm(x)).flatten(0, 1);
  }

  VocabEmbedding words;
  std::vector<Block> blocks;
  SequenceLayerNorm norm;
  ColumnLinear head;
};
TORCH_MODULE(Transformer);

// The dimension in which a parameter is split; nothing: it is whole.
std::optional<std::int64_t> split_dim(const std::string& name) {
  if (name.find("norm") != std::string::npos) return {};
  if (name.ends_with("out.bias") || name.ends_with("down.bias")) return {};
  return name.ends_with("out.weight") || name.ends_with("down.weight") ? 1 : 0;
}

// Gives each parameter its part of a whole one, which all ranks draw.
void draw(Transformer& net, const TensorGroup& group) {
  torch::manual_seed(5);
  const torch::NoGradGuard no_gradients;
  for (auto& item : net->named_parameters()) {
    const auto dim = split_dim(item.key());
    auto sizes = item.value().sizes().vec();
    if (dim) sizes[static_cast<std::size_t>(*dim)] *= group.size();
    const auto whole = torch::randn(sizes) * 0.2;
    item.value().copy_(dim ? group.split(whole, *dim) : whole);
  }
}

void add_all(Hash& hash, Transformer& net, const TensorGroup& group, bool gradients) {
  const torch::NoGradGuard no_gradients;
  for (const auto& item : net->named_parameters()) {
    const auto dim = split_dim(item.key());
    const at::Tensor mine = gradients ? item.value().grad() : item.value();
    hash.add(dim ? group.gather(mine, *dim) : mine);
  }
}

// A step of all ranks, on the samples of this rank's place along the data axis. Returns its loss.
at::Tensor step(DataParallel& parallel, Transformer& net, const TensorGroup& group, int seed) {
  torch::manual_seed(seed);
  const auto text = torch::randint(kWords, {kBatch, kSequence + 1}, torch::kLong);
  const auto targets = text.narrow(1, 1, kSequence).flatten();
  const auto logits = parallel.forward(net, text.narrow(1, 0, kSequence));
  const auto loss = parallel_cross_entropy(logits, targets, group);
  loss.backward();
  return loss;
}

std::string end_of(const std::string& mode, Collective& ranks) {
  const int copies = mode == "mesh" ? 2 : 1;
  const Mesh mesh(ranks, {{"data", copies}, {"tensor", ranks.world_size() / copies}});
  const bool sequence = mode == "sequence";
  const TensorGroup group(mesh.along("tensor"),
                          sequence ? std::optional<std::int64_t>(1) : std::nullopt);
  Collective& data = mesh.along("data");
  Transformer net(group);
  draw(net, group);
  DataParallel parallel(net.ptr(), data);
  // PyTorch keeps the norms' momenta as terms with sequence parallel, and sums those.
  SGD optimizer(net->parameters(), SGD::Options(0.05).momentum(sequence ? 0 : 0.9));
  Hash first, gradients, end;
  for (int number = 0; number < kSteps; ++number) {
    optimizer.zero_grad();
    const auto loss = step(parallel, net, group, 1000 + 10 * number + data.rank());
    if (number == 0) {
      first.add(loss);
      add_all(gradients, net, group, true);
    }
    end.add(loss);
    parallel.step(optimizer);
  }
  add_all(end, net, group, false);
  return fmt::format("{:016x}:{:016x}:{:016x}", first.value(), gradients.value(), end.value());
}

}  // namespace
}  // namespace ddprun::worker

int main(int argc, char** argv) { ddprun::worker::print_ends(argc, argv, ddprun::worker::end_of); }
