// Averages gradients over ranks while backward() runs: a hook on each parameter fills its bucket,
// complete buckets are launched in order, and when backward() ends all have arrived. Knows the
// phases of a pass (armed, unfinished) and when to rebuild the buckets; the memory is
// GradientBuckets', the order BucketQueue's, the transport the Collective's. Calls come from the
// training thread, hooks from the thread that runs backward() for the parameters' device.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "worker/reducer/bucket_queue.h"
#include "worker/reducer/gradient_buckets.h"

namespace torch::autograd {
struct Node;
}

namespace ddprun::worker {

class GradientReducer {
 public:
  struct Options {
    std::vector<std::size_t> bucket_limits_bytes;  // of the rebuilt buckets; the last repeats
    GradientMode mode = GradientMode::kView;
  };

  // Collective. `parameters` all need a gradient, lie on the collective's device, have a summable
  // dtype.
  GradientReducer(std::vector<NamedTensor> parameters, Collective& collective, Options options);
  GradientReducer(const GradientReducer&) = delete;
  GradientReducer& operator=(const GradientReducer&) = delete;
  GradientReducer(GradientReducer&&) = delete;
  GradientReducer& operator=(GradientReducer&&) = delete;
  ~GradientReducer();  // removes the hooks

  // Before a forward with gradients: throws if the last pass is unfinished; collective once, at the
  // second pass, when the buckets are rebuilt in rank 0's order.
  void begin_pass();

  // After the forward of a synchronising pass: the next backward() will be reduced. Without it
  // hooks do nothing.
  void arm();

  void check_finished() const;
  const BucketPlan& plan() const { return buckets_.plan(); }
  bool rebuilt() const { return rebuilt_; }

 private:
  struct Hook {
    std::shared_ptr<torch::autograd::Node> node;  // the parameter holds it weakly only
    std::uintptr_t key;
  };

  void on_gradient(std::size_t parameter);
  void launch_ready_buckets();
  void finish();
  void rebuild();
  std::string describe(const std::vector<std::size_t>& parameters) const;

  Collective& collective_;
  GradientBuckets buckets_;
  BucketQueue queue_;
  std::vector<std::size_t> bucket_limits_bytes_;
  std::vector<Hook> hooks_;
  std::vector<Ticket> tickets_;           // of this pass, by bucket
  std::vector<std::size_t> ready_order_;  // of the first pass; empty once rebuilt
  std::uint64_t pass_ = 0;                // armed passes, for messages
  bool armed_ = false;
  bool unfinished_ = false;  // a gradient of this pass came, not yet all
  bool rebuilt_ = false;
};

}  // namespace ddprun::worker
