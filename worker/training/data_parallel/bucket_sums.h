// The transfer of each bucket in a pass: its sum, or the result of a communication hook. A sparse
// gradient has its indices and values. A bucket whose parameters nobody uses sends nothing.
// GradientReducer owns it and calls it from the thread that runs backward(). All ranks must launch
// and complete the same buckets, in the same order.
#pragma once

#include <ddprun/comm_hook.h>

#include <cstddef>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "worker/training/data_parallel/gradient_buckets.h"

namespace ddprun::worker {

class BucketSums {
 public:
  BucketSums(GradientBuckets& buckets, const DeviceCollectives& collectives)
      : buckets_(buckets), collectives_(collectives), divisor_(collectives.at(0).world_size()) {}

  // Takes a hook instead of the plain sums. Once.
  void set_hook(CommHook hook) { hook_ = std::move(hook); }
  bool has_hook() const { return static_cast<bool>(hook_); }

  // Sets the divisor of the gradients, which at first is the count of ranks.
  void divide_by(int divisor) { divisor_ = divisor; }
  // The number that gradients are divided by before they travel. A hook divides them itself.
  int divisor() const { return hook_ ? 1 : divisor_; }

  // Begins a pass. `skipped` is by bucket. It is empty if none is skipped.
  void begin(std::vector<bool> skipped);
  // The same buckets are skipped as in the pass before.
  void begin_again() { begin(std::move(skipped_)); }
  bool skipped(std::size_t bucket) const { return !skipped_.empty() && skipped_.at(bucket); }

  // The bucket's gradients are there. Call in bucket order.
  void launch(std::size_t bucket);
  // Returns when the bucket holds the result. Call in bucket order.
  void complete(std::size_t bucket);

  // Buckets that travelled in this pass.
  std::size_t launched() const { return launched_; }

 private:
  // At most one of the two is there. A sparse bucket travels in complete(): each rank's may have
  // another size.
  struct LaunchedBucket {
    std::optional<Ticket> sum;
    std::unique_ptr<Bucket> hooked;
  };

  // That of the bucket's device.
  Collective& collective(std::size_t bucket) const {
    return collectives_.at(buckets_.device(bucket));
  }

  GradientBuckets& buckets_;
  const DeviceCollectives& collectives_;
  CommHook hook_;
  int divisor_;
  std::vector<bool> skipped_;
  std::vector<LaunchedBucket> under_way_;  // by bucket
  std::size_t launched_ = 0;
};

}  // namespace ddprun::worker
