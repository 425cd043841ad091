// A small net whose parameters and gradients are one row of numbers each. Each rank makes its data
// for itself. The rows are padded to a multiple of 60, so that 2 to 6 ranks cut them into equal
// chunks. One thread.
#pragma once

#include <torch/nn.h>
#include <torch/utils.h>

#include <algorithm>
#include <cstdint>
#include <span>

namespace ddprun::examples {

class Learner {
 public:
  Learner(int rank, int hidden) {
    torch::manual_seed(1);
    net_ = torch::nn::Sequential(torch::nn::Linear(kInputs, hidden), torch::nn::ReLU(),
                                 torch::nn::Linear(hidden, kClasses));
    teacher_ = torch::randn({kInputs, kClasses});
    test_inputs_ = torch::randn({512, kInputs});
    torch::manual_seed(static_cast<std::uint64_t>(rank) + 2);
    inputs_ = torch::randn({1024, kInputs});
  }

  std::size_t size() const {
    std::size_t count = 0;
    for (const auto& parameter : net_->parameters())
      count += static_cast<std::size_t>(parameter.numel());
    return (count + kMultiple - 1) / kMultiple * kMultiple;
  }

  // Writes the gradient of one batch of this rank; the padding stays.
  void gradient(int step, std::span<float> into) {
    const std::int64_t begin = step * kBatch % (1024 - kBatch);
    net_->zero_grad();
    loss_of(inputs_.narrow(0, begin, kBatch)).backward();
    float* at = into.data();
    for (const auto& parameter : net_->parameters())
      at = std::copy_n(parameter.grad().contiguous().data_ptr<float>(), parameter.numel(), at);
  }
  void read_parameters(std::span<float> into) const {
    float* at = into.data();
    for (const auto& parameter : net_->parameters())
      at = std::copy_n(parameter.data_ptr<float>(), parameter.numel(), at);
  }
  void write_parameters(std::span<const float> from) {
    const float* at = from.data();
    for (const auto& parameter : net_->parameters()) {
      std::copy_n(at, parameter.numel(), parameter.data_ptr<float>());
      at += parameter.numel();
    }
  }

  // On samples that all ranks have, and none trains on.
  double test_loss() {
    const torch::NoGradGuard no_gradients;
    return loss_of(test_inputs_).item<double>();
  }

 private:
  static constexpr std::int64_t kInputs = 20, kClasses = 10, kBatch = 32;
  static constexpr std::size_t kMultiple = 60;

  torch::Tensor loss_of(const torch::Tensor& inputs) {
    return torch::nn::functional::cross_entropy(net_->forward(inputs),
                                                inputs.matmul(teacher_).argmax(1));
  }

  torch::nn::Sequential net_;
  torch::Tensor teacher_, inputs_, test_inputs_;
};

}  // namespace ddprun::examples
