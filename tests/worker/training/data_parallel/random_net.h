// Random models for comparisons. They have layers of several kinds, shapes and dtypes, frozen
// parameters, layers used twice, and shared weights. They have sparse layers, layers that a pass
// leaves out, and layers that recompute their forward in backward(). Everything follows from one
// seed, so all ranks and both sides of a comparison build the same.
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

// kTied: linear, with the weight of the first layer and a bias of its own.
enum class LayerKind { kLinear, kScale, kTransposed, kEmbedding, kTied };

struct LayerRecipe {
  LayerKind kind = LayerKind::kLinear;
  at::ScalarType dtype = at::kFloat;
  std::int64_t size = 1;    // elements of a scale
  unsigned frozen = 0;      // bit i: its i-th own parameter
  bool twice = false;       // the layer is used twice in a pass
  bool recomputed = false;  // its forward runs again in backward(), for each use
};

class RandomLayerImpl : public torch::nn::Module {
 public:
  // `tied`: the weight for kTied.
  explicit RandomLayerImpl(const LayerRecipe& recipe, const torch::Tensor& tied = {})
      : recipe_(recipe) {
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
    } else if (recipe.kind == LayerKind::kTied) {
      bias_ = register_parameter("bias", torch::randn({kRandomWidth}).to(options) * 0.1);
    } else {
      scale_ = register_parameter("scale", (torch::randn({recipe.size, 3}).to(options) * 0.1).t());
    }
    freeze(*this, recipe.frozen);
    if (bias_.defined()) weight_ = register_parameter("weight", tied, tied.requires_grad());
  }

  // Bit i of `which`: the i-th parameter of the module.
  static void freeze(const torch::nn::Module& module, unsigned which) {
    const auto all = module.parameters();
    for (std::size_t i = 0; i < all.size(); ++i) {
      if ((which >> i) % 2 == 1) all[i].requires_grad_(false);
    }
  }

  torch::Tensor weight() const { return linear_->weight; }

  torch::Tensor forward(const torch::Tensor& x, const torch::Tensor& rows) {
    if (linear_) return x + 0.5 * torch::tanh(linear_(x.to(recipe_.dtype))).to(torch::kFloat);
    // The factor gives the embedding a gradient of its own. Without it the gradient's values are
    // those that go on to the layers below, and PyTorch divides them there, too.
    if (embedding_) return x + 0.5 * embedding_(rows);
    if (bias_.defined()) {
      const auto y = torch::linear(x.to(weight_.scalar_type()), weight_).to(recipe_.dtype) + bias_;
      return x + 0.5 * torch::tanh(y).to(torch::kFloat);
    }
    const auto squares = torch::real(scale_ * scale_.conj());
    return x * (1 + squares.sum().to(torch::kFloat) / static_cast<double>(scale_.numel()));
  }

  const LayerRecipe& recipe() const { return recipe_; }

 private:
  LayerRecipe recipe_;
  torch::nn::Linear linear_{nullptr};
  torch::nn::Embedding embedding_{nullptr};
  torch::Tensor scale_, bias_, weight_;
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
  // The first layer must be linear. `aside_frozen`: as LayerRecipe::frozen.
  explicit RandomNetImpl(const std::vector<LayerRecipe>& recipes, unsigned aside_frozen = 0) {
    for (const LayerRecipe& recipe : recipes) {
      const auto tied = layers_.empty() ? torch::Tensor() : layers_.front()->weight();
      layers_.push_back(
          register_module("layer" + std::to_string(layers_.size()), RandomLayer(recipe, tied)));
    }
    aside_ = register_module("aside", torch::nn::Linear(kRandomWidth, 3));
    RandomLayerImpl::freeze(*aside_, aside_frozen);
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
