#include <ATen/ops/_amp_foreach_non_finite_check_and_unscale.h>
#include <ATen/ops/full.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/zeros.h>
#include <ddprun/amp.h>
#include <fmt/format.h>

#include <cmath>
#include <map>
#include <stdexcept>
#include <string>
#include <utility>

namespace ddprun {

namespace {

void check(bool is_right, const char* name, double value, const char* expected) {
  if (!is_right)
    throw std::invalid_argument(
        fmt::format("loss scaler: {} {}: expected {}", name, value, expected));
}

void check(const GradScalerOptions& options) {
  check(options.initial_scale > 0 && std::isfinite(options.initial_scale), "initial_scale",
        options.initial_scale, "a number above 0");
  check(options.growth_factor > 1, "growth_factor", options.growth_factor, "more than 1");
  check(options.backoff_factor > 0 && options.backoff_factor < 1, "backoff_factor",
        options.backoff_factor, "more than 0 and less than 1");
  check(options.growth_interval > 0, "growth_interval",
        static_cast<double>(options.growth_interval), "1 or more steps");
}

// The numbers that the gradients of a device share.
struct DeviceNumbers {
  at::Tensor found;  // 1 if one of them is not finite, else 0
  at::Tensor inverse_scale;
};

DeviceNumbers numbers_on(const at::Device& device, double scale) {
  const auto options = at::TensorOptions().dtype(at::kFloat).device(device);
  return {at::zeros({1}, options), at::full({1}, 1.0 / scale, options)};
}

// PyTorch's scale is a float32.
double rounded(double scale) { return static_cast<double>(static_cast<float>(scale)); }

}  // namespace

GradScaler::GradScaler(const GradScalerOptions& options, Collective* agreement)
    : options_(options), agreement_(agreement), scale_(rounded(options.initial_scale)) {
  check(options);
}

at::Tensor GradScaler::scale(const at::Tensor& loss) const {
  // A tensor of float32, as PyTorch's: times a number, a loss of 16 bits overflows.
  return options_.enabled ? loss.mul(at::scalar_tensor(scale_, at::kFloat)) : loss;
}

bool GradScaler::unscale(const std::vector<at::Tensor>& parameters) {
  if (!options_.enabled) return true;
  if (unscaled_ != UnscaleResult::kNo) return unscaled_ == UnscaleResult::kFinite;
  // One call for all gradients of a kind, as PyTorch makes it.
  std::map<std::pair<std::string, at::ScalarType>, std::vector<at::Tensor>> kinds;
  for (const at::Tensor& parameter : parameters) {
    const at::Tensor& gradient = parameter.grad();
    if (!gradient.defined()) continue;
    if (gradient.scalar_type() == at::kHalf)
      throw std::invalid_argument(
          "Attempting to unscale FP16 gradients: give the optimizer and unscale() float32 masters "
          "(MasterWeights)");
    kinds[{gradient.device().str(), gradient.scalar_type()}].push_back(
        gradient.is_sparse() ? gradient._values() : gradient);
  }
  // The host waits once for a device, behind all of its kinds.
  std::map<std::string, DeviceNumbers> devices;
  for (auto& [kind, gradients] : kinds) {
    DeviceNumbers& numbers = devices[kind.first];
    if (!numbers.found.defined()) numbers = numbers_on(gradients.front().device(), scale_);
    at::_amp_foreach_non_finite_check_and_unscale_(gradients, numbers.found, numbers.inverse_scale);
  }
  double infinities = 0;
  for (const auto& [name, numbers] : devices) infinities += numbers.found.item<double>();
  if (agreement_ != nullptr) {
    std::vector<double> all{infinities};
    agreement_->sum(all);
    infinities = all.front();
  }
  unscaled_ = infinities == 0 ? UnscaleResult::kFinite : UnscaleResult::kNotFinite;
  return infinities == 0;
}

void GradScaler::update(bool is_finite) {
  if (!options_.enabled) return;
  unscaled_ = UnscaleResult::kNo;
  if (!is_finite) {
    scale_ = rounded(scale_ * options_.backoff_factor);
    steps_since_change_ = 0;
    return;
  }
  if (++steps_since_change_ < options_.growth_interval) return;
  steps_since_change_ = 0;
  const double grown = rounded(scale_ * options_.growth_factor);
  if (std::isfinite(grown)) scale_ = grown;
}

void GradScaler::load(const GradScalerState& state) {
  check(state.scale > 0 && std::isfinite(state.scale), "scale", state.scale, "a number above 0");
  scale_ = rounded(state.scale);
  steps_since_change_ = state.steps_since_change;
  unscaled_ = UnscaleResult::kNo;
}

}  // namespace ddprun
