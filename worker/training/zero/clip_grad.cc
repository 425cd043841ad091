#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/_foreach_norm.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <ddprun/optimizers.h>

#include <algorithm>
#include <optional>
#include <vector>

#include "worker/training/tensors/wrapped_number.h"

namespace ddprun {

using namespace worker;

namespace {

// Gradients of each device and dtype, in the order in which they come.
std::vector<std::vector<at::Tensor>> gradients_of(const std::vector<at::Tensor>& parameters) {
  std::vector<std::vector<at::Tensor>> batches;
  for (const at::Tensor& parameter : parameters) {
    const at::Tensor& gradient = parameter.grad();
    if (!gradient.defined()) continue;
    const auto batch = std::ranges::find_if(batches, [&gradient](const auto& other) {
      return other.front().device() == gradient.device() &&
             other.front().scalar_type() == gradient.scalar_type();
    });
    if (batch == batches.end()) {
      batches.push_back({gradient});
    } else {
      batch->push_back(gradient);
    }
  }
  return batches;
}

}  // namespace

at::Tensor clip_grad_norm(const std::vector<at::Tensor>& parameters, double max_norm,
                          double norm_type) {
  const at::NoGradGuard no_grad;
  const auto batches = gradients_of(parameters);
  if (batches.empty()) return at::zeros({});
  const at::Device first = batches.front().front().device();
  std::vector<at::Tensor> norms;
  for (const auto& batch : batches) {
    for (const at::Tensor& norm : at::_foreach_norm(batch, norm_type))
      norms.push_back(norm.to(first));
  }
  at::Tensor total = at::linalg_vector_norm(at::stack(norms), norm_type);
  // Python's max_norm / (total + 1e-6). A factor of 1 is multiplied, too: whether it is 1 the host
  // would have to wait for.
  const at::Tensor factor =
      total.add(wrapped_number(1e-6)).reciprocal().mul(wrapped_number(max_norm)).clamp_max(1.0);
  for (const auto& batch : batches) at::_foreach_mul_(batch, factor.to(batch.front().device()));
  return total;
}

}  // namespace ddprun
