// Data-parallel training of one module. Every rank holds a copy of the module and computes
// gradients on its own samples. After backward(), `.grad` on each rank holds the average over all
// ranks. The behaviour, the buckets and the bits are those of PyTorch 2.11's
// DistributedDataParallel (with Gloo, on CPU). By default gradients lie in the buckets, as with its
// gradient_as_bucket_view.
//
//   Net net;
//   ddprun::worker::DataParallel parallel(net.ptr(), *process->collective);
//   torch::optim::SGD optimizer(net->parameters(), 0.01);
//   for (const auto& [images, labels] : batches) {
//     optimizer.zero_grad();
//     const auto loss = torch::nll_loss(parallel.forward(net, images), labels);
//     loss.backward();  // the sums travel while it runs; they are complete when it returns
//     parallel.step(optimizer);
//   }
//
// It does not wrap the module, own the optimizer or split the data (see DistributedSampler). Call
// it from the training thread. The collective must outlive it. Errors are exceptions:
// std::invalid_argument for options and modules that cannot be trained, CollectiveError when a sum
// fails, std::runtime_error for the rest. Where PyTorch has the same error, ours begins with its
// words.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "worker/collective/collective.h"

namespace torch::nn {
class Module;
}

namespace ddprun::worker {

class GradientReducer;

// PyTorch 2.11's limits (torch/nn/parallel/distributed.py, _ddp_init_helper). The first bucket is
// small, so that its sum starts early. A program that sets a cap sets it for all buckets, the first
// one too.
inline constexpr std::size_t kBucketCapBytes = std::size_t{25} << 20;
inline constexpr std::size_t kFirstBucketBytes = std::size_t{1} << 20;

struct DataParallelOptions {
  // The limit of each rebuilt bucket: PyTorch's bucket_cap_mb. Unset: kBucketCapBytes.
  std::optional<std::size_t> bucket_cap_bytes;
  // The limit of the first rebuilt bucket. Unset: bucket_cap_bytes if set, else kFirstBucketBytes.
  std::optional<std::size_t> first_bucket_bytes;
  // `.grad` lies in the bucket: no copy back, no second copy of the gradients in memory.
  bool gradient_as_bucket_view = true;
  // Copy rank 0's buffers (running statistics) to all ranks: at the first forward, and at each
  // forward after one that synchronised gradients.
  bool broadcast_buffers = true;
  bool init_sync = true;                // verify the model and take rank 0's state at construction
  bool find_unused_parameters = false;  // refused when true: not built yet
  bool static_graph = false;            // refused when true: not built yet
};

class DataParallel {
 public:
  // All ranks must call it. Throws if no parameter needs a gradient, if parameters lie on different
  // devices or not on the collective's, or if a parameter is sparse or has a dtype that cannot be
  // summed. Throws on all ranks if their models differ in the number or shapes of parameters.
  DataParallel(std::shared_ptr<torch::nn::Module> module, Collective& collective,
               const DataParallelOptions& options = {});
  DataParallel(const DataParallel&) = delete;
  DataParallel& operator=(const DataParallel&) = delete;
  DataParallel(DataParallel&&) = delete;
  DataParallel& operator=(DataParallel&&) = delete;
  // Removes the hooks. Gradients that lie in buckets stay valid. If the last backward() returned and
  // left parameters without a gradient, nobody may use the model any more: a step on it has made the
  // ranks part. Then this logs which parameters, and ends the process with exit code 1.
  ~DataParallel();

  // model->forward(arguments...) with what must happen before and after it. `model` must be the
  // module that was given to the constructor, by its own type. The next backward() averages the
  // gradients, unless a NoSync lives or gradients are off.
  template <typename Model, typename... Arguments>
  auto forward(Model& model, Arguments&&... arguments) {
    before_forward();
    auto output = model->forward(std::forward<Arguments>(arguments)...);
    after_forward();
    return output;
  }

  // The two halves of forward(), for models with several entry points. With gradients on,
  // before_forward() throws if the previous backward() left parameters without a gradient, or if a
  // parameter was frozen, or unfrozen, since construction.
  void before_forward();
  void after_forward();

  // While a NoSync lives, forward() does not prepare a sum: gradients accumulate on each rank. The
  // first forward() and backward() after it average what has accumulated. Only forward() must run
  // while the NoSync lives. Several may live at once; the last one to end counts.
  class NoSync {
   public:
    explicit NoSync(DataParallel& parallel) : parallel_(parallel) { ++parallel_.no_sync_depth_; }
    NoSync(const NoSync&) = delete;
    NoSync& operator=(const NoSync&) = delete;
    NoSync(NoSync&&) = delete;
    NoSync& operator=(NoSync&&) = delete;
    ~NoSync() { --parallel_.no_sync_depth_; }

   private:
    DataParallel& parallel_;
  };
  [[nodiscard]] NoSync no_sync() { return NoSync(*this); }

  // optimizer.step(), if backward() has reduced all gradients; else throws, and names those that are
  // missing. A plain optimizer.step() makes the ranks part there; the next forward() throws then.
  template <typename Optimizer, typename... Arguments>
  auto step(Optimizer& optimizer, Arguments&&... arguments) {
    check_reduced();
    return optimizer.step(std::forward<Arguments>(arguments)...);
  }

  // The check alone.
  void check_reduced() const;

  // Parameter indices by bucket, in launch order. At first there is one bucket per dtype. The first
  // forward with gradients after a pass that was summed rebuilds them in PyTorch's layout.
  const std::vector<std::vector<std::size_t>>& buckets() const;
  bool buckets_rebuilt() const;

 private:
  // A parameter of the module, and whether it needed a gradient at construction.
  struct Parameter {
    std::string name;
    at::Tensor tensor;
    bool trained;
  };

  void check_frozen() const;

  std::shared_ptr<torch::nn::Module> module_;
  Collective& collective_;
  DataParallelOptions options_;
  std::vector<Parameter> parameters_;
  std::unique_ptr<GradientReducer> reducer_;
  int no_sync_depth_ = 0;
  bool buffers_due_ = true;  // the previous forward was a synchronising one
};

}  // namespace ddprun::worker
