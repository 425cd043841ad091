// What ranks tell each other besides gradients: means over all samples, and whether they all hold
// the same state. All ranks must call these functions in the same order, on the training thread.
// Owns nothing.
#pragma once

#include <cstdint>
#include <string_view>

#include "worker/collective/collective.h"

namespace ddprun::examples {

// A metric on this rank. Sum and count stay apart until both are summed over the ranks. A mean of
// the ranks' means would be wrong if ranks saw unequal numbers of samples.
struct Tally {
  double sum = 0;
  double count = 0;  // samples; padding is not counted

  // Adds a batch: its mean, and how many samples it has.
  void add(double mean, double samples) {
    sum += mean * samples;
    count += samples;
  }
};

// The mean over the samples of all ranks. All ranks get the same bits; NaN if no rank has seen a
// sample.
double mean_over_ranks(worker::Collective& ranks, const Tally& mine);

// Throws std::runtime_error on all ranks unless all have the same number. The error names `what`
// and the first rank that differs from rank 0.
void require_same(worker::Collective& ranks, std::uint64_t mine, std::string_view what);

}  // namespace ddprun::examples
