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

// Throws std::runtime_error on all ranks unless all have the same number, such as the checksum of
// their weights. The error names `what` and the first rank that differs from rank 0. All ranks must
// call it, on the training thread.
void require_same(Collective& ranks, std::uint64_t mine, std::string_view what);

}  // namespace ddprun
