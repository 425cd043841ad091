#include "worker/training/norm/fused_batch_norm.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/batch_norm_backward_elemt.h>
#include <ATen/ops/batch_norm_backward_reduce.h>
#include <ATen/ops/batch_norm_elemt.h>
#include <ATen/ops/batch_norm_gather_stats_with_counts.h>
#include <ATen/ops/batch_norm_stats.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/custom_function.h>

#include <stdexcept>
#include <utility>

#include "worker/training/norm/rank_rows.h"
#include "worker/training/tensors/held_collective.h"

namespace ddprun::worker {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// The kernels take memory in order, with the channels behind or last.
at::Tensor in_order(const at::Tensor& tensor) {
  if (tensor.is_contiguous(at::MemoryFormat::Contiguous)) return tensor;
  if (tensor.dim() == 4 && tensor.is_contiguous(at::MemoryFormat::ChannelsLast)) return tensor;
  if (tensor.dim() == 5 && tensor.is_contiguous(at::MemoryFormat::ChannelsLast3d)) return tensor;
  return tensor.contiguous();
}

at::TensorOptions sums_of(const at::Tensor& input) {
  const bool is_double = input.scalar_type() == at::kDouble;
  return input.options().dtype(is_double ? at::kDouble : at::kFloat);
}

// Mean, scale and count of this rank's values: (2C + 1).
at::Tensor own_stats(const at::Tensor& input, double eps, const NormKernels& kernels) {
  const std::int64_t channels = input.size(1);
  const std::int64_t values = input.numel() / channels;
  if (values == 0) return at::zeros({2 * channels + 1}, sums_of(input));
  const auto [mean, scale] = kernels.stats(input, eps);
  return at::cat({mean, scale, at::full({1}, static_cast<double>(values), mean.options())});
}

struct NormStats {
  at::Tensor mean, scale;      // of all ranks
  at::Tensor variance, means;  // unbiased, for the running ones
  at::Tensor counts;           // by rank
};

NormStats stats_of_all(const at::Tensor& input, double eps, const Collective& ranks,
                       TensorCollective& tensors, const NormKernels& kernels) {
  const std::int64_t channels = input.size(1);
  const at::Tensor rows = rows_of_all(own_stats(input, eps, kernels), ranks, tensors);
  const at::Tensor counts = rows.select(1, 2 * channels).contiguous();
  const at::Tensor is_empty = counts == 0;
  // The kernel divides by the scales, and by sums of the counts. Those of an empty rank weigh
  // nothing, and may not be 0.
  constexpr double kNearlyNone = 1e-30;
  const at::Tensor scales =
      rows.narrow(1, channels, channels).masked_fill(is_empty.unsqueeze(1), 1);
  NormStats all;
  all.means = at::zeros({channels}, rows.options());
  all.variance = at::zeros({channels}, rows.options());
  std::tie(all.mean, all.scale) =
      kernels.gather(input, rows.narrow(1, 0, channels).contiguous(), scales.contiguous(),
                     all.means, all.variance, eps, counts.masked_fill(is_empty, kNearlyNone));
  all.counts = counts.to(at::kInt);
  // One value has no unbiased variance: its own counts, which is 0.
  all.variance.masked_fill_(counts.sum() < 2, 0.0);
  return all;
}

// The sums are those of the batch's type, whatever the running ones have.
void move_running(const NormLayer& layer, const NormStats& stats) {
  if (layer.batches.defined()) layer.batches.add_(1);
  if (!layer.running_mean.defined()) return;
  const auto move = [&layer](const at::Tensor& running, const at::Tensor& value) {
    const at::Tensor from = running.to(value.scalar_type());
    running.copy_(layer.momentum
                      ? from.lerp(value, *layer.momentum)
                      : from.lerp(value, layer.batches.to(value.scalar_type()).reciprocal()));
  };
  move(layer.running_mean, stats.means);
  move(layer.running_var, stats.variance);
}

struct HeldKernels : torch::CustomClassHolder {
  explicit HeldKernels(const NormKernels& held) : kernels(held) {}
  NormKernels kernels;
};

// torch/nn/modules/_functions.py of 2.11, SyncBatchNorm.
class FusedNormalize : public torch::autograd::Function<FusedNormalize> {
 public:
  // NOLINTNEXTLINE(readability-function-size): autograd says which parameters
  static at::Tensor forward(AutogradContext* context, const at::Tensor& input,
                            const at::Tensor& weight, const at::Tensor& bias,
                            const NormStats& stats, double eps,
                            const std::shared_ptr<TensorCollective>& tensors,
                            const NormKernels* kernels) {
    context->save_for_backward({input, weight, stats.mean, stats.scale, stats.counts});
    hold(*context, tensors);
    context->saved_data["kernels"] =
        at::IValue::make_capsule(c10::make_intrusive<HeldKernels>(*kernels));
    if (input.numel() == 0) return at::empty_like(input);
    return kernels->normalize(input, weight, bias, stats.mean, stats.scale, eps);
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    refuse_second_gradient("SyncBatchNorm");
    const at::NoGradGuard no_grad;
    const auto saved = context->get_saved_variables();
    const auto& [input, weight, mean, scale, counts] =
        std::tie(saved[0], saved[1], saved[2], saved[3], saved[4]);
    const auto held = context->saved_data["kernels"].toCapsule();
    const NormKernels& kernels = static_cast<const HeldKernels&>(*held).kernels;
    const at::Tensor gradient = in_order(gradients[0]);
    const bool is_empty = input.numel() == 0;
    at::Tensor sum;
    at::Tensor product;
    variable_list results(7);
    if (is_empty) {
      sum = product = at::zeros_like(mean);
      results[1] = results[2] = at::zeros_like(weight);
    } else {
      std::tie(sum, product, results[1], results[2]) =
          kernels.sum_gradient(gradient, input, mean, scale, weight, context->needs_input_grad(1),
                               context->needs_input_grad(2));
    }
    // Also where this rank's input needs no gradient: another rank's may.
    const at::Tensor sums = at::cat({sum, product});
    held_by(*context).all_reduce(sums, Reduction::kSum, "batch norm gradient");
    if (!context->needs_input_grad(0)) return results;
    const std::int64_t channels = input.size(1);
    results[0] = is_empty ? at::empty_like(input)
                          : kernels.input_gradient(gradient, input, mean, scale, weight,
                                                   sums.narrow(0, 0, channels),
                                                   sums.narrow(0, channels, channels), counts);
    return results;
  }
};

}  // namespace

const NormKernels& torch_norm_kernels() {
  static const NormKernels kernels{
      .stats = [](const at::Tensor& input, double eps) { return at::batch_norm_stats(input, eps); },
      .gather =
          [](const at::Tensor& input, const at::Tensor& means, const at::Tensor& scales,
             const at::Tensor& mean, const at::Tensor& variance, double eps,
             const at::Tensor& counts) {
            return at::batch_norm_gather_stats_with_counts(input, means, scales, mean, variance,
                                                           /*momentum=*/1, eps, counts);
          },
      .normalize =
          [](const at::Tensor& input, const at::Tensor& weight, const at::Tensor& bias,
             const at::Tensor& mean, const at::Tensor& scale,
             double eps) { return at::batch_norm_elemt(input, weight, bias, mean, scale, eps); },
      .sum_gradient =
          [](const at::Tensor& gradient, const at::Tensor& input, const at::Tensor& mean,
             const at::Tensor& scale, const at::Tensor& weight, bool of_weight, bool of_bias) {
            return at::batch_norm_backward_reduce(gradient, input, mean, scale, weight,
                                                  /*input_g=*/true, of_weight, of_bias);
          },
      .input_gradient =
          [](const at::Tensor& gradient, const at::Tensor& input, const at::Tensor& mean,
             const at::Tensor& scale, const at::Tensor& weight, const at::Tensor& sum,
             const at::Tensor& product, const at::Tensor& counts) {
            return at::batch_norm_backward_elemt(gradient, input, mean, scale, weight, sum, product,
                                                 counts);
          }};
  return kernels;
}

at::Tensor fused_batch_norm(const at::Tensor& input, const NormLayer& layer,
                            const Collective& ranks,
                            const std::shared_ptr<TensorCollective>& tensors,
                            const NormKernels& kernels) {
  const at::Tensor ordered = in_order(input);
  const NormStats stats = [&] {
    const at::NoGradGuard no_grad;
    NormStats found = stats_of_all(ordered, layer.eps, ranks, *tensors, kernels);
    move_running(layer, found);
    return found;
  }();
  // A graph has no place for what is undefined. The kernels take parameters in order, of the type
  // in which they add. Autograd gives the gradients their own type again.
  const auto or_constant = [&stats](const at::Tensor& parameter, double value) {
    if (!parameter.defined()) return at::full_like(stats.mean, value);
    return parameter.to(stats.mean.scalar_type()).contiguous();
  };
  return FusedNormalize::apply(ordered, or_constant(layer.weight, 1), or_constant(layer.bias, 0),
                               stats, layer.eps, tensors, &kernels);
}

}  // namespace ddprun::worker
