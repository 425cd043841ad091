// Means over all ranks: of a loss, of an accuracy. Each rank keeps a sum and a count; only these
// are summed over the ranks. So a rank with few samples has little weight. One thread.
//
//   Mean loss, accuracy;
//   loss.add(batch_loss * samples, samples);
//   accuracy.add(right, samples);
//   const auto means = means_over(ranks, {loss, accuracy});  // one round trip for both
#pragma once

#include <initializer_list>
#include <vector>

#include "worker/collective/core/collective.h"

namespace ddprun::worker {

class Mean {
 public:
  // `sum` of `count` values. Values that must have no weight, such as padded samples, are sum 0 and
  // count 0.
  void add(double sum, double count = 1) {
    sum_ += sum;
    count_ += count;
  }
  double sum() const { return sum_; }
  double count() const { return count_; }

  // All ranks must call it, and get the same bits. NaN if no rank has added anything.
  double over(Collective& ranks) const;

 private:
  double sum_ = 0;
  double count_ = 0;
};

// The same of several at once, in the same order on all ranks.
std::vector<double> means_over(Collective& ranks, std::initializer_list<Mean> means);

}  // namespace ddprun::worker
