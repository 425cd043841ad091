// The model of the programs that train beside Python, and the hash of its end. parity_trainer.py
// has the same.
#pragma once

#include <ddprun/collective.h>
#include <torch/torch.h>

#include <cstdint>

namespace ddprun::worker {

struct ParityNetImpl : torch::nn::Module {
  explicit ParityNetImpl(bool with_norm) {
    first = register_module("first", torch::nn::Linear(20, 32));
    if (with_norm) norm = register_module("norm", torch::nn::BatchNorm1d(32));
    aside = register_module("aside", torch::nn::Linear(32, 32));
    last = register_module("last", torch::nn::Linear(32, 10));
  }

  torch::Tensor forward(const torch::Tensor& x, bool use_aside) {
    auto hidden = first(x);
    if (norm) hidden = norm(hidden);
    hidden = torch::tanh(hidden);
    if (use_aside) hidden = hidden + aside(hidden);
    return last(hidden);
  }

  torch::nn::Linear first{nullptr}, aside{nullptr}, last{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};
};
TORCH_MODULE(ParityNet);

// The device on which a rank trains. bootstrap() has made its GPU the current one.
inline at::Device device_of(const Collective& ranks) {
  return ranks.device() == Device::kCuda ? at::kCUDA : at::kCPU;
}

// Its weights are those of the CPU, whatever the device is.
inline ParityNet made_net(bool with_norm, at::Device device) {
  ParityNet net(with_norm);
  torch::manual_seed(5);
  const torch::NoGradGuard no_grad;
  for (at::Tensor& parameter : net->parameters()) {
    parameter.copy_(torch::randn(parameter.sizes()) * 0.2);
  }
  net->to(device);
  return net;
}

// Samples and labels of a pass, the same on each device.
struct ParityBatch {
  at::Tensor x;  // [8, 20]
  at::Tensor y;  // [8] int64
};

inline ParityBatch batch_of(std::uint64_t seed, at::Device device) {
  torch::manual_seed(seed);
  const auto x = torch::randn({8, 20});
  return {x.to(device), torch::randint(10, {8}, torch::kLong).to(device)};
}

// FNV-1a, 64 bits.
class Hash {
 public:
  void add(const at::Tensor& tensor) {
    const at::Tensor values = tensor.detach().cpu().contiguous();
    const auto* bytes = static_cast<const unsigned char*>(values.data_ptr());
    for (std::size_t i = 0; i < values.nbytes(); ++i) value_ = (value_ ^ bytes[i]) * 0x100000001b3U;
  }
  std::uint64_t value() const { return value_; }

 private:
  std::uint64_t value_ = 0xcbf29ce484222325U;
};

inline std::uint64_t hash_of(const torch::nn::Module& net) {
  Hash hash;
  for (const at::Tensor& parameter : net.parameters()) hash.add(parameter);
  for (const at::Tensor& buffer : net.buffers()) hash.add(buffer);
  return hash.value();
}

}  // namespace ddprun::worker
