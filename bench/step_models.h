// The models of bench/step and one batch for each. bench/step_models.py has the same ones in
// Python. They have the same modules in the same order, the same weights and the same batches, bit
// for bit. Change both; bench/step compares the losses.
#pragma once

#include <torch/torch.h>

#include <cmath>
#include <cstdint>
#include <memory>
#include <string_view>

namespace ddprun::bench {

class Model : public torch::nn::Module {
 public:
  // From inputs to the scores of the classes: [samples, classes] float.
  virtual torch::Tensor forward(torch::Tensor inputs) = 0;
};

struct Batch {
  torch::Tensor inputs;
  torch::Tensor labels;  // [samples] int64
};

// 784-512-512-10: 669,706 parameters, 2.7 MB.
class Mlp final : public Model {
 public:
  torch::Tensor forward(torch::Tensor inputs) override {
    inputs = torch::relu(first_(inputs));
    return last_(torch::relu(second_(inputs)));
  }

 private:
  torch::nn::Linear first_ = register_module("first", torch::nn::Linear(784, 512));
  torch::nn::Linear second_ = register_module("second", torch::nn::Linear(512, 512));
  torch::nn::Linear last_ = register_module("last", torch::nn::Linear(512, 10));
};

inline torch::nn::Conv2d convolution(std::int64_t in, std::int64_t out, std::int64_t side,
                                     std::int64_t stride) {
  return torch::nn::Conv2d(
      torch::nn::Conv2dOptions(in, out, side).stride(stride).padding(side / 2).bias(false));
}

// Two convolutions, and a way past them.
class ResidualBlockImpl final : public torch::nn::Module {
 public:
  ResidualBlockImpl(std::int64_t in, std::int64_t out, std::int64_t stride)
      : conv1_(register_module("conv1", convolution(in, out, 3, stride))),
        norm1_(register_module("norm1", torch::nn::BatchNorm2d(out))),
        conv2_(register_module("conv2", convolution(out, out, 3, 1))),
        norm2_(register_module("norm2", torch::nn::BatchNorm2d(out))) {
    if (in == out) return;
    past_ = register_module("past", convolution(in, out, 1, stride));
    past_norm_ = register_module("past_norm", torch::nn::BatchNorm2d(out));
  }

  torch::Tensor forward(const torch::Tensor& inputs) {
    const auto hidden = torch::relu(norm1_(conv1_(inputs)));
    const auto past = past_ ? past_norm_(past_(inputs)) : inputs;
    return torch::relu(norm2_(conv2_(hidden)) + past);
  }

 private:
  torch::nn::Conv2d conv1_;
  torch::nn::BatchNorm2d norm1_;
  torch::nn::Conv2d conv2_;
  torch::nn::BatchNorm2d norm2_;
  torch::nn::Conv2d past_{nullptr};
  torch::nn::BatchNorm2d past_norm_{nullptr};
};
TORCH_MODULE(ResidualBlock);

// ResNet-18 for images of 32 x 32: 11,173,962 parameters, 44.7 MB.
class ResNet18 final : public Model {
 public:
  ResNet18() {
    std::int64_t in = 64;
    for (const std::int64_t out : {64, 128, 256, 512}) {
      blocks_->push_back(ResidualBlock(in, out, in == out ? 1 : 2));
      blocks_->push_back(ResidualBlock(out, out, 1));
      in = out;
    }
  }

  torch::Tensor forward(torch::Tensor images) override {
    images = blocks_->forward(torch::relu(norm_(conv_(images))));
    return last_(images.mean({2, 3}));
  }

 private:
  torch::nn::Conv2d conv_ = register_module("conv", convolution(3, 64, 3, 1));
  torch::nn::BatchNorm2d norm_ = register_module("norm", torch::nn::BatchNorm2d(64));
  torch::nn::Sequential blocks_ = register_module("blocks", torch::nn::Sequential());
  torch::nn::Linear last_ = register_module("last", torch::nn::Linear(512, 10));
};

// 150 layers of 16: 300 small parameters, so that what each parameter costs weighs most.
class Deep final : public Model {
 public:
  Deep() {
    for (int i = 0; i < 150; ++i) layers_->push_back(torch::nn::Linear(16, 16));
  }

  torch::Tensor forward(torch::Tensor inputs) override { return layers_->forward(inputs); }

 private:
  torch::nn::Sequential layers_ = register_module("layers", torch::nn::Sequential());
};

inline constexpr std::int64_t kWidth = 320;
inline constexpr std::int64_t kHeads = 5;
inline constexpr std::int64_t kLayers = 4;
inline constexpr std::int64_t kWords = 2000;
inline constexpr std::int64_t kLength = 64;  // words of a sentence

// Attention and two linear layers, each after a norm, and ways past them.
class EncoderLayerImpl final : public torch::nn::Module {
 public:
  torch::Tensor forward(torch::Tensor words) {
    words = words + attention(norm1_(words));
    return words + narrow_(torch::gelu(wide_(norm2_(words))));
  }

 private:
  torch::Tensor attention(const torch::Tensor& words) {
    const auto count = words.size(0);
    const auto parts = split_(words).view({count, kLength, 3, kHeads, kWidth / kHeads});
    const auto heads = parts.permute({2, 0, 3, 1, 4}).unbind(0);
    const auto mixed = at::scaled_dot_product_attention(heads[0], heads[1], heads[2]);
    return join_(mixed.transpose(1, 2).reshape({count, kLength, kWidth}));
  }

  static torch::nn::LayerNorm norm() {
    return torch::nn::LayerNorm(torch::nn::LayerNormOptions({kWidth}));
  }

  torch::nn::LayerNorm norm1_ = register_module("norm1", norm());
  torch::nn::Linear split_ = register_module("split", torch::nn::Linear(kWidth, 3 * kWidth));
  torch::nn::Linear join_ = register_module("join", torch::nn::Linear(kWidth, kWidth));
  torch::nn::LayerNorm norm2_ = register_module("norm2", norm());
  torch::nn::Linear wide_ = register_module("wide", torch::nn::Linear(kWidth, 4 * kWidth));
  torch::nn::Linear narrow_ = register_module("narrow", torch::nn::Linear(4 * kWidth, kWidth));
};
TORCH_MODULE(EncoderLayer);

// An encoder of four layers: 6,234,960 parameters, 24.9 MB.
class Transformer final : public Model {
 public:
  Transformer() {
    for (std::int64_t i = 0; i < kLayers; ++i) layers_->push_back(EncoderLayer());
  }

  torch::Tensor forward(torch::Tensor words) override {
    words = layers_->forward(words_(words) + places_(torch::arange(kLength)));
    return last_(norm_(words)).view({-1, kWords});
  }

 private:
  torch::nn::Embedding words_ = register_module("words", torch::nn::Embedding(kWords, kWidth));
  torch::nn::Embedding places_ = register_module("places", torch::nn::Embedding(kLength, kWidth));
  torch::nn::Sequential layers_ = register_module("layers", torch::nn::Sequential());
  torch::nn::LayerNorm norm_ =
      register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({kWidth})));
  torch::nn::Linear last_ = register_module("last", torch::nn::Linear(kWidth, kWords));
};

// C++ and Python modules draw their first weights in different orders; these are alike.
inline void set_weights(Model& model) {
  torch::manual_seed(1);
  const torch::NoGradGuard no_gradients;
  for (const auto& item : model.named_parameters()) {
    torch::Tensor values = item.value();
    if (values.dim() > 1) {
      const auto inputs = static_cast<double>(values.numel() / values.size(0));
      values.copy_(torch::randn(values.sizes()) / std::sqrt(inputs));
    } else if (item.key().ends_with("bias")) {
      values.zero_();
    }
  }
}

// Null if there is no such model.
inline std::shared_ptr<Model> make_model(std::string_view name) {
  std::shared_ptr<Model> model;
  if (name == "mlp") model = std::make_shared<Mlp>();
  if (name == "deep") model = std::make_shared<Deep>();
  if (name == "resnet18") model = std::make_shared<ResNet18>();
  if (name == "transformer") model = std::make_shared<Transformer>();
  if (model) set_weights(*model);
  return model;
}

// Each rank has samples of its own.
inline Batch make_batch(std::string_view name, int rank) {
  torch::manual_seed(1000 + rank);
  const auto numbers = [](std::int64_t end, torch::IntArrayRef sizes) {
    return torch::randint(end, sizes, torch::kLong);
  };
  if (name == "mlp") return {torch::randn({64, 784}), numbers(10, {64})};
  if (name == "deep") return {torch::randn({16, 16}), numbers(16, {16})};
  if (name == "resnet18") return {torch::randn({16, 3, 32, 32}), numbers(10, {16})};
  return {numbers(kWords, {8, kLength}), numbers(kWords, {8 * kLength})};
}

}  // namespace ddprun::bench
