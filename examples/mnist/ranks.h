// What the ranks of a training job ask one another besides gradients: means over all samples, and
// whether they hold the same state. Collective: all ranks call these in the same order, on the
// training thread.
#pragma once

#include <cstdint>
#include <string_view>

#include "worker/collective/collective.h"

namespace ddprun::examples {

// A metric on this rank. Sum and count stay apart until both are summed over the ranks: a mean of
// the ranks' means would be wrong where they saw unequal numbers of samples.
struct Tally {
  double sum = 0;
  double count = 0;  // samples; padding is not counted

  void add(double mean, double samples) {
    sum += mean * samples;
    count += samples;
  }
};

// The mean over the samples of all ranks, the same bits on each; NaN where no rank has seen a
// sample.
double mean_over_ranks(worker::Collective& ranks, const Tally& mine);

// Throws std::runtime_error on all ranks, naming `what` and a rank, unless all hold the same
// number.
void require_same(worker::Collective& ranks, std::uint64_t mine, std::string_view what);

}  // namespace ddprun::examples
