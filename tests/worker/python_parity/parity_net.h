// The model of the programs that train beside Python, and the hash of its end. parity_trainer.py
// has the same.
#pragma once

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

inline ParityNet made_net(bool with_norm) {
  ParityNet net(with_norm);
  torch::manual_seed(5);
  const torch::NoGradGuard no_grad;
  for (at::Tensor& parameter : net->parameters()) {
    parameter.copy_(torch::randn(parameter.sizes()) * 0.2);
  }
  return net;
}

// FNV-1a, 64 bits.
inline std::uint64_t hash_of(const torch::nn::Module& net) {
  std::uint64_t hash = 0xcbf29ce484222325U;
  const auto add = [&hash](const at::Tensor& tensor) {
    const at::Tensor values = tensor.detach().contiguous();
    const auto* bytes = static_cast<const unsigned char*>(values.data_ptr());
    for (std::size_t i = 0; i < values.nbytes(); ++i) hash = (hash ^ bytes[i]) * 0x100000001b3U;
  };
  for (const at::Tensor& parameter : net.parameters()) add(parameter);
  for (const at::Tensor& buffer : net.buffers()) add(buffer);
  return hash;
}

}  // namespace ddprun::worker
