#include <ATen/core/grad_mode.h>
#include <ddprun/amp.h>
#include <fmt/format.h>

#include <stdexcept>

#include "worker/training/tensors/stepped_tensors.h"

namespace ddprun {

using namespace worker;

MasterWeights::MasterWeights(torch::nn::Module& module, at::ScalarType dtype, bool keep_buffers) {
  if (dtype != at::kBFloat16 && dtype != at::kHalf)
    throw std::invalid_argument(
        fmt::format("weights in {}: expected Half or BFloat16", c10::toString(dtype)));
  const at::NoGradGuard no_grad;
  for (const auto& item : module.named_parameters())
    if (item.value().grad().defined())
      throw std::invalid_argument(
          fmt::format("parameter {} has a gradient: make MasterWeights before the first backward()",
                      item.key()));
  for (at::Tensor& parameter : module.parameters()) {
    if (parameter.scalar_type() != at::kFloat) continue;
    const at::Tensor master = parameter.detach().clone();
    parameter.set_data(parameter.to(dtype));
    if (!parameter.requires_grad()) continue;
    parameters_.push_back(parameter);
    masters_.push_back(master.requires_grad_());
  }
  if (keep_buffers) return;
  for (at::Tensor& buffer : module.buffers())
    if (buffer.scalar_type() == at::kFloat) buffer.set_data(buffer.to(dtype));
}

void MasterWeights::require_masters(const std::vector<at::Tensor>& stepped) const {
  if (any_is_of(stepped, parameters_))
    throw std::invalid_argument(
        "MasterWeights: the optimizer has the module's parameters, and its steps would be lost: "
        "make it with "
        "masters.parameters()");
}

void MasterWeights::take_gradients() {
  for (std::size_t i = 0; i < masters_.size(); ++i) {
    const at::Tensor& gradient = parameters_[i].grad();
    masters_[i].mutable_grad() = gradient.defined() ? gradient.to(at::kFloat) : at::Tensor();
  }
}

void MasterWeights::give_weights() {
  const at::NoGradGuard no_grad;
  for (std::size_t i = 0; i < masters_.size(); ++i) parameters_[i].copy_(masters_[i]);
}

}  // namespace ddprun
