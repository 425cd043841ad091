// The convolutional net of the usual MNIST example. It has the same modules in the same order as
// examples/pytorch/ddp_mnist.py, so that equal seeds give equal weights. The training thread only.
#pragma once

#include <ddprun/readers.h>
#include <ddprun/tensor_dataset.h>
#include <torch/nn.h>
#include <torch/types.h>

namespace ddprun::examples {

class NetImpl : public torch::nn::Module {
 public:
  NetImpl()
      : conv1_(register_module("conv1", torch::nn::Conv2d(1, 32, 3))),
        conv2_(register_module("conv2", torch::nn::Conv2d(32, 64, 3))),
        dropout1_(register_module("dropout1", torch::nn::Dropout(0.25))),
        fc1_(register_module("fc1", torch::nn::Linear(9216, 128))),
        dropout2_(register_module("dropout2", torch::nn::Dropout(0.5))),
        fc2_(register_module("fc2", torch::nn::Linear(128, 10))) {}

  // From images, [batch, 1, 28, 28] float, to log-probabilities, [batch, 10] float.
  torch::Tensor forward(torch::Tensor images) {
    images = torch::relu(conv1_(images));
    images = torch::relu(conv2_(images));
    images = dropout1_(torch::max_pool2d(images, 2));
    images = torch::relu(fc1_(torch::flatten(images, 1)));
    return torch::log_softmax(fc2_(dropout2_(images)), 1);
  }

 private:
  torch::nn::Conv2d conv1_, conv2_;
  torch::nn::Dropout dropout1_;
  torch::nn::Linear fc1_;
  torch::nn::Dropout dropout2_;
  torch::nn::Linear fc2_;
};
TORCH_MODULE(Net);

// Images [count, 1, 28, 28] float, with mean 0 and deviation 1 over MNIST, and labels [count]
// int64.
inline TensorDataset to_tensors(readers::LabelledImages digits) {
  constexpr double kMean = 0.1307, kDeviation = 0.3081;  // of the 60,000 training images
  const auto count = static_cast<std::int64_t>(digits.count());
  const auto images = torch::from_blob(digits.pixels.data(), {count, 1, 28, 28}, torch::kByte);
  const auto labels = torch::from_blob(digits.labels.data(), {count}, torch::kByte);
  return {images.to(torch::kFloat).div(255).sub(kMean).div(kDeviation), labels.to(torch::kLong)};
}

}  // namespace ddprun::examples
