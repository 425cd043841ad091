// ResNet-18, as torchvision has it but for the first layer. With `stem` 3 it is that of small
// images (CIFAR), a 3×3 convolution. With 7 it is that of photographs. `width` channels after the
// first layer; 64 is the usual one, a smaller net is for tests. examples/pytorch/resnet18.py has
// the same modules in the same order.
#pragma once

#include <torch/nn.h>
#include <torch/types.h>

#include <cstdint>

#include "examples/nets/conv_net.h"

namespace ddprun::examples {

inline torch::nn::Conv2d convolution(std::int64_t from, std::int64_t to, std::int64_t side,
                                     std::int64_t stride) {
  return torch::nn::Conv2d(
      torch::nn::Conv2dOptions(from, to, side).stride(stride).padding(side / 2).bias(false));
}

class BlockImpl : public torch::nn::Module {
 public:
  BlockImpl(std::int64_t from, std::int64_t to, std::int64_t stride)
      : conv1_(register_module("conv1", convolution(from, to, 3, stride))),
        norm1_(register_module("bn1", torch::nn::BatchNorm2d(to))),
        conv2_(register_module("conv2", convolution(to, to, 3, 1))),
        norm2_(register_module("bn2", torch::nn::BatchNorm2d(to))) {
    if (stride == 1 && from == to) return;
    shortcut_->push_back(convolution(from, to, 1, stride));
    shortcut_->push_back(torch::nn::BatchNorm2d(to));
    register_module("downsample", shortcut_);
  }

  torch::Tensor forward(const torch::Tensor& input) {
    const auto inner = torch::relu(norm1_(conv1_(input)));
    const auto past = shortcut_->is_empty() ? input : shortcut_->forward(input);
    return torch::relu(norm2_(conv2_(inner)) + past);
  }

 private:
  torch::nn::Conv2d conv1_;
  torch::nn::BatchNorm2d norm1_;
  torch::nn::Conv2d conv2_;
  torch::nn::BatchNorm2d norm2_;
  torch::nn::Sequential shortcut_;
};
TORCH_MODULE(Block);

class ResNet18Impl : public ConvNet {
 public:
  ResNet18Impl(std::int64_t classes, std::int64_t stem, std::int64_t width = 64)
      : small_(stem == 3),
        first_(register_module("conv1", convolution(3, width, stem, small_ ? 1 : 2))),
        norm_(register_module("bn1", torch::nn::BatchNorm2d(width))) {
    std::int64_t from = width;
    for (std::int64_t layer = 0; layer < 4; ++layer) {
      const std::int64_t to = width << layer;
      blocks_->push_back(Block(from, to, layer == 0 ? 1 : 2));
      blocks_->push_back(Block(to, to, 1));
      from = to;
    }
    register_module("blocks", blocks_);
    last_ = register_module("fc", torch::nn::Linear(from, classes));
  }

  torch::Tensor forward(torch::Tensor images) override {
    images = torch::relu(norm_(first_(images)));
    if (!small_) images = torch::max_pool2d(images, 3, 2, 1);
    images = blocks_->forward(images);
    return last_(torch::flatten(torch::adaptive_avg_pool2d(images, {1, 1}), 1));
  }

 private:
  bool small_;
  torch::nn::Conv2d first_;
  torch::nn::BatchNorm2d norm_;
  torch::nn::Sequential blocks_;
  torch::nn::Linear last_{nullptr};
};
TORCH_MODULE(ResNet18);

}  // namespace ddprun::examples
