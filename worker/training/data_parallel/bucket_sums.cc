#include "worker/training/data_parallel/bucket_sums.h"

#include <utility>

#include "worker/training/tensors/bucket_name.h"
#include "worker/training/tensors/sparse_sum.h"

namespace ddprun::worker {

void BucketSums::begin(std::vector<bool> skipped) {
  skipped_ = std::move(skipped);
  under_way_.clear();
  under_way_.resize(buckets_.plan().size());
  launched_ = 0;
}

void BucketSums::launch(std::size_t bucket) {
  if (skipped(bucket)) return;
  ++launched_;
  if (buckets_.sparse(bucket) || buckets_.stay()) return;
  LaunchedBucket& under_way = under_way_.at(bucket);
  if (!hook_) {
    Flat flat = buckets_.flat(bucket);
    flat.name = name_of_bucket(bucket);
    under_way.sum = collective(bucket).launch_sum(flat);
    return;
  }
  std::vector<at::Tensor> parameters;
  for (const std::size_t parameter : buckets_.plan()[bucket])
    parameters.push_back(buckets_.parameters()[parameter].tensor);
  const bool last = bucket + 1 == buckets_.plan().size();
  under_way.hooked = std::make_unique<Bucket>(bucket, last, buckets_.buffer(bucket),
                                              std::move(parameters), collective(bucket));
  hook_(*under_way.hooked, collective(bucket));
}

void BucketSums::complete(std::size_t bucket) {
  if (skipped(bucket)) return;
  const LaunchedBucket& under_way = under_way_.at(bucket);
  if (under_way.sum) return collective(bucket).wait(*under_way.sum);
  if (under_way.hooked) return under_way.hooked->finish();
  if (!buckets_.sparse(bucket)) return;
  at::Tensor& gradient = buckets_.view(buckets_.plan()[bucket].front());
  gradient = sum_sparse(gradient, collective(bucket));
}

}  // namespace ddprun::worker
