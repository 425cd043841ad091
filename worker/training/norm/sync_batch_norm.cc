#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/zeros.h>
#include <ddprun/sync_batch_norm.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/nn/functional/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>

#include <ostream>
#include <stdexcept>
#include <string>
#include <utility>

#include "worker/training/norm/fused_batch_norm.h"
#include "worker/training/norm/rank_rows.h"
#include "worker/training/tensors/held_collective.h"

namespace ddprun {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// The values of one channel: all dimensions but the second.
std::vector<std::int64_t> dims_but_channels(const at::Tensor& input) {
  std::vector<std::int64_t> dims{0};
  for (std::int64_t dim = 2; dim < input.dim(); ++dim) dims.push_back(dim);
  return dims;
}

// One number for each channel, as it stands beside the input.
at::Tensor beside(const at::Tensor& by_channel, const at::Tensor& input) {
  std::vector<std::int64_t> sizes(static_cast<std::size_t>(input.dim()), 1);
  sizes[1] = by_channel.numel();
  return by_channel.view(sizes);
}

// The moments of all ranks' values, by channel. float64.
struct Moments {
  at::Tensor mean;
  at::Tensor variance;  // biased
  at::Tensor count;     // one number
};

// Each rank's mean and variance, weighted by its count: as good as two walks over the joined batch.
Moments combine(const at::Tensor& rows, std::int64_t channels) {
  const at::Tensor counts = rows.narrow(1, 2 * channels, 1);
  const at::Tensor means = rows.narrow(1, 0, channels);
  const at::Tensor variances = rows.narrow(1, channels, channels);
  const at::Tensor count = counts.sum();
  const at::Tensor mean = (counts * means).sum(0) / count;
  const at::Tensor variance = (counts * (variances + (means - mean).square())).sum(0) / count;
  return {mean, variance, count};
}

Moments moments_of_all(const at::Tensor& input, const Collective& ranks,
                       TensorCollective& tensors) {
  const std::int64_t channels = input.size(1);
  const auto dims = dims_but_channels(input);
  const auto options = input.options().dtype(at::kDouble);
  const std::int64_t values = input.numel() / channels;
  at::Tensor mean = at::zeros({channels}, options);
  at::Tensor variance = mean;
  if (values > 0) {
    mean = input.sum(dims, /*keepdim=*/false, at::kDouble) / static_cast<double>(values);
    variance = (input.to(at::kDouble) - beside(mean, input)).square_().mean(dims);
  }
  const at::Tensor count = at::full({1}, static_cast<double>(values), options);
  return combine(worker::rows_of_all(at::cat({mean, variance, count}), ranks, tensors), channels);
}

// torch/nn/modules/_functions.py of 2.11, SyncBatchNorm, with sums in float64.
class Normalize : public torch::autograd::Function<Normalize> {
 public:
  // NOLINTNEXTLINE(readability-function-size): autograd says which parameters
  static at::Tensor forward(AutogradContext* context, const at::Tensor& input,
                            const at::Tensor& weight, const at::Tensor& bias,
                            const Moments& moments, double eps,
                            const std::shared_ptr<TensorCollective>& tensors) {
    const at::Tensor scale = at::rsqrt(moments.variance + eps);
    context->save_for_backward({input, weight, moments.mean, scale, moments.count});
    worker::hold(*context, tensors);
    at::Tensor output = input.to(at::kDouble).sub(beside(moments.mean, input));
    output.mul_(beside(scale * weight, input)).add_(beside(bias, input));
    return output.to(input.scalar_type());
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    worker::refuse_second_gradient("SyncBatchNorm");
    const at::NoGradGuard no_grad;
    const auto saved = context->get_saved_variables();
    const auto& [input, weight, mean, scale, count] =
        std::tie(saved[0], saved[1], saved[2], saved[3], saved[4]);
    const auto dims = dims_but_channels(input);
    const at::Tensor gradient = gradients[0].to(at::kDouble);
    const at::Tensor centred = input.to(at::kDouble).sub(beside(mean, input));
    const at::Tensor sum = gradient.sum(dims);
    const at::Tensor product = (gradient * centred).sum(dims);
    variable_list results(6);
    if (context->needs_input_grad(1)) results[1] = (product * scale).to(weight.scalar_type());
    if (context->needs_input_grad(2)) results[2] = sum.to(weight.scalar_type());
    // Also where this rank's input needs no gradient: another rank's may.
    const at::Tensor sums = at::cat({sum, product});
    worker::held_by(*context).all_reduce(sums, Reduction::kSum, "batch norm gradient");
    if (!context->needs_input_grad(0)) return results;
    const std::int64_t channels = input.size(1);
    const at::Tensor all_sum = sums.narrow(0, 0, channels) / count;
    const at::Tensor all_product = sums.narrow(0, channels, channels) * scale.square() / count;
    results[0] = gradient.sub(beside(all_sum, input))
                     .sub_(centred * beside(all_product, input))
                     .mul_(beside(scale * weight, input))
                     .to(input.scalar_type());
    return results;
  }
};

// The place of a batch norm in a Sequential, and what comes there.
struct Place {
  torch::nn::SequentialImpl* parent;
  std::string name;
  std::size_t index;
  std::shared_ptr<SyncBatchNormImpl> made;
};

template <typename Norm>
std::shared_ptr<SyncBatchNormImpl> made_of(const torch::nn::Module& module, Collective& ranks) {
  const auto* norm = dynamic_cast<const Norm*>(&module);
  if (norm == nullptr) return nullptr;
  auto made = std::make_shared<SyncBatchNormImpl>(norm->options, ranks);
  made->share(norm->weight, norm->bias,
              {norm->running_mean, norm->running_var, norm->num_batches_tracked});
  made->train(norm->is_training());
  return made;
}

// Null if it is no batch norm.
std::shared_ptr<SyncBatchNormImpl> sync_of(const torch::nn::Module& module, Collective& ranks) {
  if (auto made = made_of<torch::nn::BatchNorm1dImpl>(module, ranks)) return made;
  if (auto made = made_of<torch::nn::BatchNorm2dImpl>(module, ranks)) return made;
  return made_of<torch::nn::BatchNorm3dImpl>(module, ranks);
}

// Finds all below `module`: those that can be replaced, and the names of the others.
void find_norms(torch::nn::Module& module, const std::string& prefix, Collective& ranks,
                std::vector<Place>& places, std::vector<std::string>& fixed) {
  auto* sequential = dynamic_cast<torch::nn::SequentialImpl*>(&module);
  std::size_t index = 0;
  for (const auto& child : module.named_children()) {
    const std::string name = prefix + child.key();
    if (auto made = sync_of(*child.value(), ranks)) {
      if (sequential != nullptr)
        places.push_back({sequential, child.key(), index, std::move(made)});
      else
        fixed.push_back(name);
    } else {
      find_norms(*child.value(), name + ".", ranks, places, fixed);
    }
    ++index;
  }
}

}  // namespace

SyncBatchNormImpl::SyncBatchNormImpl(const torch::nn::BatchNormOptions& options_of,
                                     Collective& ranks)
    : NormImplBase(options_of),
      ranks_(&ranks),
      collective_(std::make_shared<TensorCollective>(ranks)) {}

void SyncBatchNormImpl::share(const at::Tensor& shared_weight, const at::Tensor& shared_bias,
                              const std::array<at::Tensor, 3>& buffers) {
  if (shared_weight.defined()) parameters_["weight"] = weight = shared_weight;
  if (shared_bias.defined()) parameters_["bias"] = bias = shared_bias;
  const std::array own{&running_mean, &running_var, &num_batches_tracked};
  for (std::size_t i = 0; i < own.size(); ++i) {
    if (buffers[i].defined()) own[i]->set_data(buffers[i]);
  }
}

void SyncBatchNormImpl::_check_input_dim(const at::Tensor& input) {
  if (input.dim() >= 2 && input.size(1) == options.num_features()) return;
  throw std::invalid_argument(
      fmt::format("SyncBatchNorm: expected an input of sizes (N, {}, …), got ({})",
                  options.num_features(), fmt::join(input.sizes(), ", ")));
}

// Returns the step of the running statistics. None if they go to the average of all batches.
double SyncBatchNormImpl::momentum_now() {
  if (!options.track_running_stats()) return 0;
  num_batches_tracked.add_(1);
  const auto momentum = options.momentum();
  return momentum ? *momentum : 1 / num_batches_tracked.item<double>();
}

at::Tensor SyncBatchNormImpl::forward(const at::Tensor& input) {
  _check_input_dim(input);
  if (!is_training() || ranks_->world_size() == 1) {
    const double momentum = is_training() ? momentum_now() : 0;
    const bool of_batch = is_training() || !running_mean.defined();
    return torch::nn::functional::batch_norm(input, running_mean, running_var,
                                             torch::nn::functional::BatchNormFuncOptions()
                                                 .weight(weight)
                                                 .bias(bias)
                                                 .training(of_batch)
                                                 .momentum(momentum)
                                                 .eps(options.eps()));
  }
  if (input.is_cuda()) {
    const bool tracks = options.track_running_stats();
    return worker::fused_batch_norm(
        input,
        {weight, bias, running_mean, running_var, tracks ? num_batches_tracked : at::Tensor(),
         options.momentum(), options.eps()},
        *ranks_, collective_, worker::torch_norm_kernels());
  }
  const Moments moments = [&] {
    const at::NoGradGuard no_grad;
    return moments_of_all(input, *ranks_, *collective_);
  }();
  if (moments.count.item<double>() < 2) {
    throw std::invalid_argument(
        "Expected more than 1 value per channel when training, over the batches of all ranks");
  }
  track(moments.mean, moments.variance, moments.count);
  // A graph has no place for what is undefined.
  const auto or_constant = [&](const at::Tensor& parameter, double value) {
    return parameter.defined() ? parameter : at::full_like(moments.mean, value);
  };
  return Normalize::apply(input, or_constant(weight, 1), or_constant(bias, 0), moments,
                          options.eps(), collective_);
}

// The running variance is the unbiased one.
void SyncBatchNormImpl::track(const at::Tensor& mean, const at::Tensor& variance,
                              const at::Tensor& count) {
  const at::NoGradGuard no_grad;
  const double momentum = momentum_now();
  if (!running_mean.defined()) return;
  // One value has no such variance: its own counts, which is 0, and not NaN for ever.
  const at::Tensor unbiased = variance * (count / (count - 1).clamp_min(1));
  const auto move = [momentum](at::Tensor& running, const at::Tensor& to) {
    running.copy_(running.to(at::kDouble).mul_(1 - momentum).add_(to, momentum));
  };
  move(running_mean, mean);
  move(running_var, unbiased);
}

void SyncBatchNormImpl::pretty_print(std::ostream& stream) const {
  stream << fmt::format("ddprun::SyncBatchNorm({}, eps={}, affine={}, track_running_stats={})",
                        options.num_features(), options.eps(), options.affine(),
                        options.track_running_stats());
}

std::shared_ptr<torch::nn::Module> convert_sync_batch_norm(
    const std::shared_ptr<torch::nn::Module>& module, Collective& ranks) {
  if (auto made = sync_of(*module, ranks)) return made;
  std::vector<Place> places;
  std::vector<std::string> fixed;
  find_norms(*module, "", ranks, places, fixed);
  if (!fixed.empty()) {
    throw std::invalid_argument(fmt::format(
        "convert_sync_batch_norm: '{}' cannot be replaced: its parent calls it by its own type. "
        "Declare it as SyncBatchNorm there, or put it into a Sequential",
        fmt::join(fixed, "', '")));
  }
  for (auto& [parent, name, index, made] : places) {
    parent->replace_module(name, made);
    *(parent->begin() + static_cast<std::ptrdiff_t>(index)) = torch::nn::AnyModule(made);
  }
  return module;
}

}  // namespace ddprun
