// Random models for comparisons: layers of several kinds, shapes and dtypes, frozen ones, shared ones,
// sparse ones, layers that a pass leaves out, and layers that recompute their forward in backward().
// Everything follows from one seed, so all ranks and both sides of a comparison build the same.
#pragma once

#include <torch/autograd.h>
#include <torch/nn.h>

#include <random>
#include <string>
#include <tuple>
#include <vector>

namespace ddprun::worker {

constexpr std::int64_t kRandomWidth = 12;
constexpr std::int64_t kRandomRows = 20;  // of an embedding

enum class LayerKind { kLinear, kScale, kTransposed, kEmbedding };

struct LayerRecipe {
  LayerKind kind = LayerKind::kLinear;
  at::ScalarType dtype = at::kFloat;
  std::int64_t size = 1;    // elements of a scale
  bool frozen = false;      // its first parameter
  bool twice = false;       // the layer is used twice in a pass
  bool recomputed = false;  // its forward runs again in backward(), for each use
};

class RandomLayerImpl : public torch::nn::Module {
 public:
  explicit RandomLayerImpl(const LayerRecipe& recipe) : recipe_(recipe) {
    const auto options = at::TensorOptions(recipe.dtype);
    if (recipe.kind == LayerKind::kLinear) {
      linear_ = register_module("linear", torch::nn::Linear(kRandomWidth, kRandomWidth));
      linear_->to(recipe.dtype);
    } else if (recipe.kind == LayerKind::kEmbedding) {
      embedding_ = register_module(
          "embedding", torch::nn::Embedding(
                           torch::nn::EmbeddingOptions(kRandomRows, kRandomWidth).sparse(true)));
    } else if (recipe.kind == LayerKind::kScale) {
      scale_ = register_parameter("scale", torch::randn({recipe.size}).to(options) * 0.1);
    } else {
      scale_ = register_parameter("scale", (torch::randn({recipe.size, 3}).to(options) * 0.1).t());
    }
    if (recipe.frozen) parameters().front().requires_grad_(false);
  }

  torch::Tensor forward(const torch::Tensor& x, const torch::Tensor& rows) {
    if (linear_) return x + 0.5 * torch::tanh(linear_(x.to(recipe_.dtype))).to(torch::kFloat);
    // The factor gives the embedding a gradient of its own. Without it the gradient's values are those
    // that go on to the layers below, and PyTorch divides them there, too.
    if (embedding_) return x + 0.5 * embedding_(rows);
    const auto squares = torch::real(scale_ * scale_.conj());
    return x * (1 + squares.sum().to(torch::kFloat) / static_cast<double>(scale_.numel()));
  }

  const LayerRecipe& recipe() const { return recipe_; }

 private:
  LayerRecipe recipe_;
  torch::nn::Linear linear_{nullptr};
  torch::nn::Embedding embedding_{nullptr};
  torch::Tensor scale_;
};
TORCH_MODULE(RandomLayer);

// Activation checkpointing: keeps the input only, and runs backward() inside of backward().
class Recomputed : public torch::autograd::Function<Recomputed> {
 public:
  static torch::Tensor forward(torch::autograd::AutogradContext* context, const torch::Tensor& x,
                               const torch::Tensor& rows, RandomLayerImpl* layer) {
    context->save_for_backward({x, rows});
    context->saved_data["layer"] = reinterpret_cast<std::int64_t>(layer);
    return layer->forward(x, rows);
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    const auto saved = context->get_saved_variables();
    auto* layer = reinterpret_cast<RandomLayerImpl*>(context->saved_data["layer"].toInt());
    const at::AutoGradMode recording(true);
    const auto x = saved[0].detach().requires_grad_();
    torch::autograd::backward({layer->forward(x, saved[1])}, {gradients[0]});
    return {x.grad(), {}, {}};
  }
};

class RandomNetImpl : public torch::nn::Module {
 public:
  explicit RandomNetImpl(const std::vector<LayerRecipe>& recipes) {
    for (const LayerRecipe& recipe : recipes) {
      layers_.push_back(
          register_module("layer" + std::to_string(layers_.size()), RandomLayer(recipe)));
    }
    aside_ = register_module("aside", torch::nn::Linear(kRandomWidth, 3));
  }

  // `used`: by layer. The second output has a graph of its own below it, with the layer `aside`.
  std::tuple<torch::Tensor, torch::Tensor> forward(torch::Tensor x, const torch::Tensor& rows,
                                                   const std::vector<bool>& used) {
    for (std::size_t i = 0; i < layers_.size(); ++i) {
      if (!used[i]) continue;
      const LayerRecipe& recipe = layers_[i]->recipe();
      for (int use = 0; use < (recipe.twice ? 2 : 1); ++use) {
        x = recipe.recomputed ? Recomputed::apply(x, rows, layers_[i].get()) : layers_[i](x, rows);
      }
    }
    return {x, aside_(x)};
  }

 private:
  std::vector<RandomLayer> layers_;
  torch::nn::Linear aside_{nullptr};
};
TORCH_MODULE(RandomNet);

}  // namespace ddprun::worker
