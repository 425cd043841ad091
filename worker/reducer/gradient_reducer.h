// Averages gradients over the ranks while backward() runs. A hook on each parameter fills its
// bucket; full buckets are launched in order; backward() returns when all sums are complete.
// A pass is one forward() and its backward(). This class knows how far the pass is and when to
// rebuild the buckets. GradientBuckets knows the memory, BucketQueue the order, and the Collective
// carries the sums. DataParallel owns it and calls it from the training thread. Its hooks run on
// the thread that runs backward() for the parameters' device.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
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

  // All ranks must call it. Each of `parameters` must need a gradient, lie on the collective's
  // device and have a dtype that summable() knows.
  GradientReducer(std::vector<NamedTensor> parameters, Collective& collective, Options options);
  GradientReducer(const GradientReducer&) = delete;
  GradientReducer& operator=(const GradientReducer&) = delete;
  GradientReducer(GradientReducer&&) = delete;
  GradientReducer& operator=(GradientReducer&&) = delete;
  ~GradientReducer();  // removes the hooks

  // Call before each forward with gradients. Throws std::runtime_error if the last pass is
  // unfinished. The first call after a summed pass rebuilds the buckets in rank 0's order: then all
  // ranks must call it.
  void begin_pass();

  // Call after a forward whose gradients shall be averaged. Without it the hooks do nothing in the
  // next backward().
  void arm();

  // Throws std::runtime_error if backward() left parameters without a gradient, and names them; or if
  // it ended by an error of ours.
  void check_finished() const;
  // What check_finished() throws. Nothing: it throws nothing.
  std::optional<std::string> why_unfinished() const;
  // An exception of this pass has told the program that it is unfinished.
  bool program_knows() const { return failed_ || told_; }
  const BucketPlan& plan() const { return buckets_.plan(); }
  bool rebuilt() const { return rebuilt_; }

 private:
  struct Hook {
    std::shared_ptr<torch::autograd::Node> node;  // the parameter holds it weakly only
    std::uintptr_t key;
  };

  void on_gradient(std::size_t parameter);
  void take_gradient(std::size_t parameter);
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
  bool unfinished_ = false;    // a gradient of this pass came, not yet all
  bool failed_ = false;        // a hook, or a sum, has thrown in this pass
  mutable bool told_ = false;  // check_finished() has thrown in this pass
  bool summed_ = false;        // a pass was summed, and no other one began
  bool rebuilt_ = false;
};

}  // namespace ddprun::worker
