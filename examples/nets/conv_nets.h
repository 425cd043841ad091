// Nets for images, by name: ResNet-18, AlexNet and VGG-11 with batch norm. Layers and their sizes
// are torchvision's. Small images (CIFAR, 32 pixels) have smaller first layers. `width` channels
// after the first layer; 64 is the usual one, a smaller net is for tests.
// examples/pytorch/conv_nets.py has the same modules in the same order.
#pragma once

#include <torch/nn.h>
#include <torch/types.h>

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "examples/nets/conv_net.h"
#include "examples/nets/resnet18.h"

namespace ddprun::examples {

inline const std::vector<std::string> kConvNets{"resnet18", "alexnet", "vgg11"};

// Convolutions, and linear layers on what they find.
class TwoPartNet : public ConvNet {
 public:
  TwoPartNet(torch::nn::Sequential features, torch::nn::Sequential classifier)
      : features_(register_module("features", std::move(features))),
        classifier_(register_module("classifier", std::move(classifier))) {}
  torch::Tensor forward(torch::Tensor images) override {
    return classifier_->forward(torch::flatten(features_->forward(images), 1));
  }

 private:
  torch::nn::Sequential features_, classifier_;
};

inline void add_convolution(torch::nn::Sequential& net, std::int64_t from, std::int64_t to,
                            std::int64_t side, std::int64_t stride = 1, std::int64_t padding = 1) {
  net->push_back(
      torch::nn::Conv2d(torch::nn::Conv2dOptions(from, to, side).stride(stride).padding(padding)));
}

inline void add_relu(torch::nn::Sequential& net) { net->push_back(torch::nn::ReLU()); }

inline std::shared_ptr<ConvNet> alexnet(std::int64_t classes, bool small, std::int64_t width) {
  const std::int64_t pool = small ? 2 : 3, side = small ? 2 : 6, hidden = 64 * width;
  const auto max_pool = [&] {
    return torch::nn::MaxPool2d(torch::nn::MaxPool2dOptions(pool).stride(2));
  };
  torch::nn::Sequential features, classifier;
  add_convolution(features, 3, width, small ? 3 : 11, small ? 2 : 4, small ? 1 : 2);
  add_relu(features);
  features->push_back(max_pool());
  add_convolution(features, width, 3 * width, small ? 3 : 5, 1, small ? 1 : 2);
  add_relu(features);
  features->push_back(max_pool());
  for (const auto& [from, to] : {std::pair{3, 6}, {6, 4}, {4, 4}}) {
    add_convolution(features, from * width, to * width, 3);
    add_relu(features);
  }
  features->push_back(max_pool());
  features->push_back(torch::nn::AdaptiveAvgPool2d(side));
  for (const std::int64_t inputs : {4 * width * side * side, hidden}) {
    classifier->push_back(torch::nn::Dropout(0.5));
    classifier->push_back(torch::nn::Linear(inputs, hidden));
    add_relu(classifier);
  }
  classifier->push_back(torch::nn::Linear(hidden, classes));
  return std::make_shared<TwoPartNet>(features, classifier);
}

inline std::shared_ptr<ConvNet> vgg11(std::int64_t classes, bool small, std::int64_t width) {
  constexpr std::int64_t kPool = 0;
  const std::int64_t side = small ? 1 : 7, hidden = 64 * width;
  torch::nn::Sequential features, classifier;
  std::int64_t from = 3;
  for (const std::int64_t times :
       {1L, kPool, 2L, kPool, 4L, 4L, kPool, 8L, 8L, kPool, 8L, 8L, kPool}) {
    if (times == kPool) {
      features->push_back(torch::nn::MaxPool2d(2));
      continue;
    }
    add_convolution(features, from, times * width, 3);
    from = times * width;
    features->push_back(torch::nn::BatchNorm2d(from));
    add_relu(features);
  }
  features->push_back(torch::nn::AdaptiveAvgPool2d(side));
  for (const std::int64_t inputs : {from * side * side, hidden}) {
    classifier->push_back(torch::nn::Linear(inputs, hidden));
    add_relu(classifier);
    classifier->push_back(torch::nn::Dropout(0.5));
  }
  classifier->push_back(torch::nn::Linear(hidden, classes));
  return std::make_shared<TwoPartNet>(features, classifier);
}

// The least side of photographs that the net of a name can take.
inline int least_side(const std::string& name) {
  if (name == "alexnet") return 63;
  return name == "vgg11" ? 32 : 1;
}

// Makes the net of a name of kConvNets. `small`: for small images.
inline std::shared_ptr<ConvNet> conv_net(const std::string& name, std::int64_t classes, bool small,
                                         std::int64_t width) {
  if (name == "alexnet") return alexnet(classes, small, width);
  if (name == "vgg11") return vgg11(classes, small, width);
  return std::make_shared<ResNet18Impl>(classes, small ? 3 : 7, width);
}

}  // namespace ddprun::examples
