// Batch norm over all ranks by LibTorch's kernels for it, which are CUDA's alone. The rest of it
// needs no GPU. Tests give other kernels.
#pragma once

#include <ATen/core/Tensor.h>
#include <ddprun/collective.h>
#include <ddprun/tensor_collective.h>

#include <memory>
#include <optional>
#include <tuple>

namespace ddprun::worker {

// C: channels, W: ranks. Means and reciprocals of standard deviations have the type in which CUDA
// adds: float64 for float64, else float32.
struct NormKernels {
  using Two = std::tuple<at::Tensor, at::Tensor>;
  using Four = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor>;

  // Mean and reciprocal of the standard deviation by channel: (C), (C).
  Two (*stats)(const at::Tensor& input, double eps);
  // The same of all ranks, of those of each rank: (W, C), (W, C), and its count of values (W). Puts
  // their mean and unbiased variance into `mean` and `variance` (C).
  Two (*gather)(const at::Tensor& input, const at::Tensor& means, const at::Tensor& scales,
                const at::Tensor& mean, const at::Tensor& variance, double eps,
                const at::Tensor& counts);
  // The normalised input, in its type.
  at::Tensor (*normalize)(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& bias,
                          const at::Tensor& mean, const at::Tensor& scale, double eps);
  // By channel the sum of the gradient, and its sum with the centred input. Then the gradients of
  // weight and bias, which may be undefined if nobody needs them.
  Four (*sum_gradient)(const at::Tensor& gradient, const at::Tensor& input, const at::Tensor& mean,
                       const at::Tensor& scale, const at::Tensor& weight, bool of_weight,
                       bool of_bias);
  // The gradient of the input. The sums are those of all ranks; `counts`: int32 (W).
  at::Tensor (*input_gradient)(const at::Tensor& gradient, const at::Tensor& input,
                               const at::Tensor& mean, const at::Tensor& scale,
                               const at::Tensor& weight, const at::Tensor& sum,
                               const at::Tensor& product, const at::Tensor& counts);
};

// LibTorch's.
const NormKernels& torch_norm_kernels();

// The parts of a batch norm.
struct NormLayer {
  at::Tensor weight, bias;               // (C), undefined without
  at::Tensor running_mean, running_var;  // (C), undefined if they are not kept
  // Counts the batches. The average of all of them is kept if there is no momentum.
  at::Tensor batches;
  std::optional<double> momentum;
  double eps = 0;
};

// Normalises each channel of (N, C, …) with the mean and variance of the batches of all ranks.
// Moves the running ones of the layer. All ranks must call it, and its backward(), in the same
// order. N may be 0 on some ranks. The host waits for no GPU, so it does not see N of 0 on all.
at::Tensor fused_batch_norm(const at::Tensor& input, const NormLayer& layer,
                            const Collective& ranks,
                            const std::shared_ptr<TensorCollective>& tensors,
                            const NormKernels& kernels);

}  // namespace ddprun::worker
