// Data-parallel training of one module. Every rank holds a copy of the module and computes
// gradients on its own samples. After backward() each rank finds in `.grad` the average over all
// ranks. The semantics, the buckets and the bits are those of PyTorch 2.11's
// DistributedDataParallel (with Gloo, on CPU), by default with gradient_as_bucket_view.
//
//   Net net;
//   DataParallel parallel(net.ptr(), *process.collective);  // checks the model, takes rank 0's weights
//   torch::optim::SGD optimizer(net->parameters(), 0.01);
//   ...
//   optimizer.zero_grad();
//   auto loss = torch::nll_loss(parallel.forward(net, images), labels);
//   loss.backward();   // the sums travel while it runs; they are complete when it returns
//   optimizer.step();
//
// Does not wrap the module, own the optimizer or split the data (see DistributedSampler). One
// training thread. The collective must outlive it. Errors are exceptions with PyTorch's opening
// words (std::runtime_error), or CollectiveError.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "worker/collective/collective.h"

namespace torch::nn {
class Module;
}

namespace ddprun::worker {

class GradientReducer;

// PyTorch 2.11's limits. The first bucket is small, so that its sum starts early; but whoever sets
// a cap sets it for all buckets (torch/nn/parallel/distributed.py, _ddp_init_helper).
inline constexpr std::size_t kBucketCapBytes = std::size_t{25} << 20;
inline constexpr std::size_t kFirstBucketBytes = std::size_t{1} << 20;

struct DataParallelOptions {
  // Of each rebuilt bucket: PyTorch's bucket_cap_mb. Unset: kBucketCapBytes.
  std::optional<std::size_t> bucket_cap_bytes;
  // Of the first rebuilt bucket. Unset: bucket_cap_bytes where that is set, else kFirstBucketBytes.
  std::optional<std::size_t> first_bucket_bytes;
  // `.grad` lies in the bucket: no copy back, no second buffer.
  bool gradient_as_bucket_view = true;
  // Rank 0's buffers (running statistics) before each synchronising forward.
  bool broadcast_buffers = true;
  bool init_sync = true;                // verify the model and take rank 0's state at construction
  bool find_unused_parameters = false;  // refused when true: not built yet
  bool static_graph = false;            // refused when true: not built yet
};

class DataParallel {
 public:
  // Collective. Throws if no parameter needs a gradient, parameters lie on different devices, have
  // a sparse or unsupported dtype, or the ranks' models differ in the number or shapes of
  // parameters (then on all ranks).
  DataParallel(std::shared_ptr<torch::nn::Module> module, Collective& collective,
               const DataParallelOptions& options = {});
  DataParallel(const DataParallel&) = delete;
  DataParallel& operator=(const DataParallel&) = delete;
  DataParallel(DataParallel&&) = delete;
  DataParallel& operator=(DataParallel&&) = delete;
  ~DataParallel();  // removes the hooks; gradients that lie in buckets stay valid

  // model->forward(arguments...) with the synchronisation around it. `model` is the module given at
  // construction, by its own type. Gradients are synchronised by the next backward() unless
  // no_sync() is held or gradients are off.
  template <typename Model, typename... Arguments>
  auto forward(Model& model, Arguments&&... arguments) {
    before_forward();
    auto output = model->forward(std::forward<Arguments>(arguments)...);
    after_forward();
    return output;
  }

  // The two halves of forward(), for models with several entry points. before_forward throws if the
  // previous backward() left parameters without a gradient.
  void before_forward();
  void after_forward();

  // While one lives, forward() arms nothing: gradients accumulate locally, and the first
  // forward()/backward() after it averages the accumulated sum. The forward must run inside. Nests.
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

  // Throws, naming the parameters, if backward() ended without a gradient for each of them. Call
  // before optimizer.step() to learn of it one iteration earlier than forward() says so.
  void check_reduced() const;

  // Parameter indices by bucket, in launch order: one bucket per dtype at first, PyTorch's layout
  // from the second forward on.
  const std::vector<std::vector<std::size_t>>& buckets() const;
  bool buckets_rebuilt() const;

 private:
  std::shared_ptr<torch::nn::Module> module_;
  Collective& collective_;
  DataParallelOptions options_;
  std::unique_ptr<GradientReducer> reducer_;
  int no_sync_depth_ = 0;
  bool buffers_due_ = true;  // the previous forward was a synchronising one
};

}  // namespace ddprun::worker
