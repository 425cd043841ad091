// Means over all ranks, of a loss or an accuracy, and whether all ranks hold the same state. Each
// rank keeps a sum and a count; only these are summed over the ranks. So a rank with few samples
// has little weight. One thread.
//
//   Mean loss, accuracy;
//   loss.add(batch_loss * samples, samples);
//   accuracy.add(right, samples);
//   const auto means = means_over(ranks, {loss, accuracy});  // one round trip for both
#pragma once

#include <ddprun/collective.h>

#include <cstdint>
#include <initializer_list>
#include <string_view>
#include <vector>

namespace ddprun {

// A mean of this rank's values, and over all ranks.
class Mean {
 public:
  // Adds `sum` of `count` values. Values that must have no weight, such as padded samples, are sum
  // 0 and count 0.
  void add(double sum, double count = 1) {
    sum_ += sum;
    count_ += count;
  }
  // Returns this rank's sum.
  double sum() const { return sum_; }
  // Returns how many values this rank has added.
  double count() const { return count_; }

  // Returns the mean over all ranks, with the same bits on all. NaN if no rank has added anything.
  // All ranks must call it. Throws CollectiveError.
  double over(Collective& ranks) const;

 private:
  double sum_ = 0;
  double count_ = 0;
};

// Returns several means over all ranks, for one round trip. All ranks must call it, with as many in
// the same order. Throws CollectiveError.
std::vector<double> means_over(Collective& ranks, std::initializer_list<Mean> means);

// Throws std::runtime_error on all ranks unless all have the same number, such as the checksum of
// their weights. The error names `what` and the first rank that differs from rank 0. All ranks must
// call it, on the training thread.
void require_same(Collective& ranks, std::uint64_t mine, std::string_view what);

}  // namespace ddprun
