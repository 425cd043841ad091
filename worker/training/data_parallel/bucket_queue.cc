#include "worker/training/data_parallel/bucket_queue.h"

#include <algorithm>

#include "base/assert.h"

namespace ddprun::worker {

BucketQueue::BucketQueue(const BucketPlan& plan) {
  std::size_t parameters = 0;
  for (const auto& bucket : plan) {
    parameters += bucket.size();
    bucket_size_.push_back(bucket.size());
  }
  bucket_of_.resize(parameters);
  for (std::size_t bucket = 0; bucket < plan.size(); ++bucket) {
    for (const std::size_t parameter : plan[bucket]) bucket_of_.at(parameter) = bucket;
  }
  rearm();
}

void BucketQueue::rearm() {
  pending_ = bucket_size_;
  ready_.assign(bucket_of_.size(), false);
  next_ = 0;
}

// Counts no gradient twice: its bucket would be launched while another gradient is still missing.
BucketQueue::Mark BucketQueue::gradient_ready(std::size_t parameter) {
  if (ready_.at(parameter)) return Mark::kAgain;
  ready_[parameter] = true;
  std::size_t& pending = pending_[bucket_of_[parameter]];
  DDPRUN_ASSERT(pending > 0);
  --pending;
  return Mark::kFirst;
}

// Only the bucket at `next_` can be launched. On all ranks a later one that is ready waits for it.
std::size_t BucketQueue::next_to_launch() {
  if (all_launched() || pending_[next_] > 0) return kNone;
  return next_++;
}

std::vector<std::size_t> BucketQueue::missing() const {
  std::vector<std::size_t> parameters;
  for (std::size_t i = 0; i < ready_.size(); ++i) {
    if (!ready_[i]) parameters.push_back(i);
  }
  return parameters;
}

}  // namespace ddprun::worker
