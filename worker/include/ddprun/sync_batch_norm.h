// Batch norm over the batches of all ranks, as if they were one. It is torch.nn.SyncBatchNorm of
// PyTorch 2.11 (torch/nn/modules/_functions.py), on CPU, too. Ranks may have unlike batches; one
// may be empty.
//
//   SyncBatchNorm norm(torch::nn::BatchNormOptions(64), *process.collective);
//   const auto model = convert_sync_batch_norm(sequential.ptr(), *process.collective);
//
// Parameters and buffers have the names of torch::nn::BatchNorm: checkpoints fit both. The
// gradients of weight and bias are this rank's share; DataParallel averages them as any others.
//
// forward() of a training module and its backward() are calls of the collective. All ranks must
// make them in the same order. Evaluation, and a single rank, calls nothing and is
// torch::batch_norm.
#pragma once

#include <ddprun/collective.h>
#include <ddprun/tensor_collective.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/pimpl.h>

#include <array>
#include <iosfwd>
#include <memory>

namespace ddprun {

// The module that SyncBatchNorm holds. See the head of this file.
class SyncBatchNormImpl
    : public torch::nn::NormImplBase<2, SyncBatchNormImpl, torch::nn::BatchNormOptions> {
 public:
  // Makes the module, with parameters of size (C). `ranks` must outlive it and the graphs of its
  // outputs.
  SyncBatchNormImpl(const torch::nn::BatchNormOptions& options_of, Collective& ranks);

  // Normalises each channel. All ranks must call it while it trains. `input`: (N, C) or (N, C,
  // …), of a floating type, on the collective's device. N may be 0 on some ranks. The result has
  // its size and type. Sums and averages are float64 on CPU, and those of PyTorch on GPUs. There
  // the host waits for the GPU of a single rank without momentum, and for no other. Throws
  // std::invalid_argument for an input of another shape. On CPU it throws on all ranks if all of
  // them together have less than two values in a channel. The result cannot be differentiated
  // twice.
  at::Tensor forward(const at::Tensor& input);

  // Takes these parameters, and the memory of these buffers (mean, variance, batches), instead of
  // its own.
  void share(const at::Tensor& shared_weight, const at::Tensor& shared_bias,
             const std::array<at::Tensor, 3>& buffers);

  // Writes one line with the options.
  void pretty_print(std::ostream& stream) const override;

 private:
  void _check_input_dim(const at::Tensor& input) override;
  double momentum_now();
  void track(const at::Tensor& mean, const at::Tensor& variance, const at::Tensor& count);

  Collective* ranks_;  // not null
  std::shared_ptr<TensorCollective> collective_;
};
TORCH_MODULE(SyncBatchNorm);

// Replaces each BatchNorm1d, 2d and 3d in `module` by a SyncBatchNorm with the same parameters,
// memory of buffers and mode. Python has torch.nn.SyncBatchNorm.convert_sync_batchnorm. Returns
// `module`, or what replaces it where it is a batch norm itself. Call it before DataParallel and
// the optimizer are made.
//
// Only the children of Sequential can be replaced: other modules call theirs by their own types.
// Throws std::invalid_argument that names each batch norm elsewhere, and changes nothing then:
// declare those as SyncBatchNorm.
std::shared_ptr<torch::nn::Module> convert_sync_batch_norm(
    const std::shared_ptr<torch::nn::Module>& module, Collective& ranks);

}  // namespace ddprun
