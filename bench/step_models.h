// The models of bench/step and one batch for each. bench/step_models.py has the same ones in
// Python. They have the same modules in the same order, the same weights and the same batches, bit
// for bit. Change both; bench/step compares the losses. Batches for a GPU are larger.
#pragma once

#include <torch/torch.h>

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>
#include <utility>

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

// Convolutions to a quarter of the outputs, over 3 x 3 and back, and a way past them.
class BottleneckImpl final : public torch::nn::Module {
 public:
  BottleneckImpl(std::int64_t in, std::int64_t out, std::int64_t stride)
      : conv1_(register_module("conv1", convolution(in, out / 4, 1, 1))),
        norm1_(register_module("norm1", torch::nn::BatchNorm2d(out / 4))),
        conv2_(register_module("conv2", convolution(out / 4, out / 4, 3, stride))),
        norm2_(register_module("norm2", torch::nn::BatchNorm2d(out / 4))),
        conv3_(register_module("conv3", convolution(out / 4, out, 1, 1))),
        norm3_(register_module("norm3", torch::nn::BatchNorm2d(out))) {
    if (in == out) return;
    past_ = register_module("past", convolution(in, out, 1, stride));
    past_norm_ = register_module("past_norm", torch::nn::BatchNorm2d(out));
  }

  torch::Tensor forward(const torch::Tensor& inputs) {
    const auto narrow = torch::relu(norm1_(conv1_(inputs)));
    const auto hidden = norm3_(conv3_(torch::relu(norm2_(conv2_(narrow)))));
    const auto past = past_ ? past_norm_(past_(inputs)) : inputs;
    return torch::relu(hidden + past);
  }

 private:
  torch::nn::Conv2d conv1_;
  torch::nn::BatchNorm2d norm1_;
  torch::nn::Conv2d conv2_;
  torch::nn::BatchNorm2d norm2_;
  torch::nn::Conv2d conv3_;
  torch::nn::BatchNorm2d norm3_;
  torch::nn::Conv2d past_{nullptr};
  torch::nn::BatchNorm2d past_norm_{nullptr};
};
TORCH_MODULE(Bottleneck);

// ResNet-50 for images of 224 x 224, as torchvision has it: 161 parameters with 25,557,032 numbers,
// 102.2 MB.
class ResNet50 final : public Model {
 public:
  ResNet50() {
    constexpr std::array<std::int64_t, 4> kBlocks{3, 4, 6, 3};
    std::int64_t in = 64;
    std::int64_t out = 256;
    for (std::size_t stage = 0; stage < kBlocks.size(); ++stage, out *= 2) {
      for (std::int64_t block = 0; block < kBlocks[stage]; ++block) {
        blocks_->push_back(Bottleneck(in, out, stage > 0 && block == 0 ? 2 : 1));
        in = out;
      }
    }
  }

  torch::Tensor forward(torch::Tensor images) override {
    images = torch::relu(norm_(conv_(images)));
    images = blocks_->forward(torch::max_pool2d(images, 3, 2, 1));
    return last_(images.mean({2, 3}));
  }

 private:
  torch::nn::Conv2d conv_ = register_module("conv", convolution(3, 64, 7, 2));
  torch::nn::BatchNorm2d norm_ = register_module("norm", torch::nn::BatchNorm2d(64));
  torch::nn::Sequential blocks_ = register_module("blocks", torch::nn::Sequential());
  torch::nn::Linear last_ = register_module("last", torch::nn::Linear(2048, 1000));
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

struct TransformerSize {
  std::int64_t width, heads, layers, words;
  std::int64_t length;  // words of a sentence
};
inline constexpr TransformerSize kSmall{320, 5, 4, 2000, 64};       // 6,234,960 parameters, 24.9 MB
inline constexpr TransformerSize kLarge{1024, 16, 24, 32000, 512};  // 368,403,712, 1.47 GB

// Attention and two linear layers, each after a norm, and ways past them.
class EncoderLayerImpl final : public torch::nn::Module {
 public:
  explicit EncoderLayerImpl(const TransformerSize& size)
      : size_(size),
        norm1_(register_module("norm1", norm())),
        split_(register_module("split", torch::nn::Linear(size.width, 3 * size.width))),
        join_(register_module("join", torch::nn::Linear(size.width, size.width))),
        norm2_(register_module("norm2", norm())),
        wide_(register_module("wide", torch::nn::Linear(size.width, 4 * size.width))),
        narrow_(register_module("narrow", torch::nn::Linear(4 * size.width, size.width))) {}

  torch::Tensor forward(torch::Tensor words) {
    words = words + attention(norm1_(words));
    return words + narrow_(torch::gelu(wide_(norm2_(words))));
  }

 private:
  torch::Tensor attention(const torch::Tensor& words) {
    const auto count = words.size(0);
    const auto parts =
        split_(words).view({count, size_.length, 3, size_.heads, size_.width / size_.heads});
    const auto heads = parts.permute({2, 0, 3, 1, 4}).unbind(0);
    const auto mixed = at::scaled_dot_product_attention(heads[0], heads[1], heads[2]);
    return join_(mixed.transpose(1, 2).reshape({count, size_.length, size_.width}));
  }

  torch::nn::LayerNorm norm() const {
    return torch::nn::LayerNorm(torch::nn::LayerNormOptions({size_.width}));
  }

  TransformerSize size_;
  torch::nn::LayerNorm norm1_;
  torch::nn::Linear split_;
  torch::nn::Linear join_;
  torch::nn::LayerNorm norm2_;
  torch::nn::Linear wide_;
  torch::nn::Linear narrow_;
};
TORCH_MODULE(EncoderLayer);

// An encoder.
class Transformer final : public Model {
 public:
  explicit Transformer(const TransformerSize& size)
      : size_(size),
        words_(register_module("words", torch::nn::Embedding(size.words, size.width))),
        places_(register_module("places", torch::nn::Embedding(size.length, size.width))),
        layers_(register_module("layers", torch::nn::Sequential())),
        norm_(register_module("norm",
                              torch::nn::LayerNorm(torch::nn::LayerNormOptions({size.width})))),
        last_(register_module("last", torch::nn::Linear(size.width, size.words))) {
    for (std::int64_t i = 0; i < size.layers; ++i) layers_->push_back(EncoderLayer(size));
  }

  torch::Tensor forward(torch::Tensor words) override {
    const auto places = torch::arange(size_.length, words.device());
    words = layers_->forward(words_(words) + places_(places));
    return last_(norm_(words)).view({-1, size_.words});
  }

 private:
  TransformerSize size_;
  torch::nn::Embedding words_;
  torch::nn::Embedding places_;
  torch::nn::Sequential layers_;
  torch::nn::LayerNorm norm_;
  torch::nn::Linear last_;
};

// C++ and Python modules draw their first weights in different orders; these are alike on a device.
inline void set_weights(Model& model) {
  torch::manual_seed(1);
  const torch::NoGradGuard no_gradients;
  for (const auto& item : model.named_parameters()) {
    torch::Tensor values = item.value();
    if (values.dim() > 1) {
      const auto inputs = static_cast<double>(values.numel() / values.size(0));
      values.copy_(torch::randn(values.sizes(), values.device()) / std::sqrt(inputs));
    } else if (item.key().ends_with("bias")) {
      values.zero_();
    }
  }
}

// Null if there is no such model.
inline std::shared_ptr<Model> make_model(std::string_view name, at::Device device) {
  std::shared_ptr<Model> model;
  if (name == "mlp") model = std::make_shared<Mlp>();
  if (name == "deep") model = std::make_shared<Deep>();
  if (name == "resnet18") model = std::make_shared<ResNet18>();
  if (name == "resnet50") model = std::make_shared<ResNet50>();
  if (name == "transformer") model = std::make_shared<Transformer>(kSmall);
  if (name == "transformer350m") model = std::make_shared<Transformer>(kLarge);
  if (!model) return nullptr;
  model->to(device);
  set_weights(*model);
  return model;
}

// Each rank has samples of its own. `wide`: as many as a GPU computes at once.
inline Batch make_batch(std::string_view name, int rank, bool wide) {
  torch::manual_seed(1000 + rank);
  const auto numbers = [](std::int64_t end, torch::IntArrayRef sizes) {
    return torch::randint(end, sizes, torch::kLong);
  };
  const auto images = [&](std::int64_t count, std::int64_t side, std::int64_t classes) {
    auto made = torch::randn({count, 3, side, side});
    return Batch{std::move(made), numbers(classes, {count})};
  };
  if (name == "mlp") return {torch::randn({64, 784}), numbers(10, {64})};
  if (name == "deep") return {torch::randn({16, 16}), numbers(16, {16})};
  if (name == "resnet18") return images(wide ? 128 : 16, 32, 10);
  if (name == "resnet50") return wide ? images(64, 224, 1000) : images(2, 64, 1000);
  const TransformerSize& size = name == "transformer" ? kSmall : kLarge;
  return {numbers(size.words, {8, size.length}), numbers(size.words, {8 * size.length})};
}

}  // namespace ddprun::bench
