// Decides which buckets may be summed now. Gradients become ready in any order, and the order may
// differ between ranks. But all ranks must launch buckets in the same order: otherwise NCCL
// deadlocks, or unlike things are added. So buckets are launched in index order. Pure. It serves
// one pass of backward() at a time; rearm() begins the next. GradientReducer owns it.
#pragma once

#include <cstddef>
#include <vector>

#include "worker/training/data_parallel/bucket_plan.h"

namespace ddprun::worker {

class BucketQueue {
 public:
  explicit BucketQueue(const BucketPlan& plan);

  // Begins a new pass: every gradient is awaited again.
  void rearm();

  // Whether a gradient became ready for the first time in this pass. After kAgain nothing changed.
  enum class Mark { kFirst, kAgain };

  // Marks a parameter's gradient as ready.
  Mark gradient_ready(std::size_t parameter);

  // The next bucket to launch, or kNone. A bucket may be launched when all its gradients are ready
  // and all earlier buckets have been launched. Hands out each bucket once in a pass.
  std::size_t next_to_launch();
  static constexpr std::size_t kNone = static_cast<std::size_t>(-1);

  bool all_launched() const { return next_ == pending_.size(); }

  std::size_t bucket_of(std::size_t parameter) const { return bucket_of_.at(parameter); }

  // The parameters whose gradient has not become ready in this pass, in ascending order.
  std::vector<std::size_t> missing() const;

 private:
  std::vector<std::size_t> bucket_of_;    // by parameter
  std::vector<std::size_t> bucket_size_;  // gradients, by bucket
  std::vector<std::size_t> pending_;      // gradients still to come, by bucket
  std::vector<bool> ready_;               // by parameter
  std::size_t next_ = 0;                  // first bucket not launched yet
};

}  // namespace ddprun::worker
