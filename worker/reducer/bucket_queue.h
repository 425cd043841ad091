// Which buckets may be summed now. Gradients become ready in any order; buckets are launched in
// index order only, because ranks that issue collectives in different orders deadlock (NCCL) or add
// unlike things. Pure; one pass of backward() at a time, between two calls of rearm().
#pragma once

#include <cstddef>
#include <vector>

#include "worker/reducer/bucket_plan.h"

namespace ddprun::worker {

class BucketQueue {
 public:
  explicit BucketQueue(const BucketPlan& plan);

  // Forgets the pass: every gradient is awaited again.
  void rearm();

  // Whether a gradient became ready for the first time in this pass. kAgain changed nothing.
  enum class Mark { kFirst, kAgain };

  // Marks a parameter's gradient as ready.
  Mark gradient_ready(std::size_t parameter);

  // The next bucket whose gradients, and those of all earlier buckets, are ready; hands out each
  // bucket once a pass. kNone: none now.
  std::size_t next_to_launch();
  static constexpr std::size_t kNone = static_cast<std::size_t>(-1);

  bool all_launched() const { return next_ == pending_.size(); }

  // Parameters whose gradient has not become ready in this pass, ascending.
  std::vector<std::size_t> missing() const;

 private:
  std::vector<std::size_t> bucket_of_;    // by parameter
  std::vector<std::size_t> bucket_size_;  // gradients, by bucket
  std::vector<std::size_t> pending_;      // gradients still to come, by bucket
  std::vector<bool> ready_;               // by parameter
  std::size_t next_ = 0;                  // first bucket not launched yet
};

}  // namespace ddprun::worker
