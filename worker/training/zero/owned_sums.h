// The reduce-scatter of a bucket in which each parameter belongs to a rank. Every rank gets the
// sums of its own parameters. They have the bits of an all-reduce of the bucket
// (worker/collective/kernels/ring_order.h). Ranks that share memory read each other's buckets;
// others send. Called from the thread of the reducer; all ranks at the same places.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "worker/collective/core/collective.h"

namespace ddprun::worker {

// One parameter's numbers in a bucket: [begin, end).
struct OwnedRange {
  int owner;
  std::int64_t begin;
  std::int64_t end;
};

class OwnedSums {
 public:
  explicit OwnedSums(Collective& ranks) : ranks_(ranks) {}

  // `buffer`: the bucket, one dimension, in memory of the collective. Afterwards this rank's ranges
  // hold sums, and the others what they held. Each number is multiplied by `factor` before it is
  // added, if that is defined.
  void sum(const at::Tensor& buffer, const std::vector<OwnedRange>& ranges,
           const at::Tensor& factor = {});

  // Returns the bytes that this rank has got from the others.
  std::uint64_t bytes() const { return bytes_; }

 private:
  // The numbers of one range, of all ranks.
  using Parts = std::vector<at::Tensor>;

  void sum_shared(const at::Tensor& buffer, const std::vector<OwnedRange>& ranges,
                  const at::Tensor& factor);
  void sum_sent(const at::Tensor& buffer, const std::vector<OwnedRange>& ranges,
                const at::Tensor& factor);
  std::vector<at::Tensor> exchange(const at::Tensor& buffer, const std::vector<OwnedRange>& ranges);
  static void add(const at::Tensor& buffer, const OwnedRange& range, const Parts& parts,
                  const at::Tensor& factor);

  Collective& ranks_;
  std::uint64_t bytes_ = 0;
};

}  // namespace ddprun::worker
