// metrics: a mean over all ranks where each has another number of samples. Rank r has r+1 batches
// of a loss. The mean of the ranks' means would weigh each sample of a small rank more. Mean sums
// values and counts, and divides once. Samples that a sampler repeats to fill up the last rank
// weigh 0.
//
//   ddprun --standalone --nproc-per-node=3 build/bin/metrics
//
// examples/pytorch/metrics.py prints the same.
#include <ddprun/metrics.h>
#include <ddprun/sampler.h>
#include <fmt/format.h>

#include <array>

#include "examples/common/program.h"

namespace {

using namespace ddprun;  // NOLINT(google-build-using-namespace)
using examples::say;

// The loss of batch b on rank r, and how many samples the batch has.
double loss_of(int rank, int batch) { return 1.0 + rank + 0.5 * batch; }
double samples_of(int rank, int batch) { return 8.0 * (rank + 1) - batch; }

void run(Process& process) {
  Collective& ranks = *process.collective;
  const int rank = ranks.rank();
  Mean loss;
  for (int batch = 0; batch <= rank; ++batch) {
    const double samples = samples_of(rank, batch);
    loss.add(loss_of(rank, batch) * samples, samples);
  }
  std::array means{loss.sum() / loss.count()};
  ranks.sum(means);

  // 10 samples for these ranks; the guesses for 0, 3, 6 and 9 are right. The padding counts 0.
  const DistributedSampler sampler(10, ranks.world_size(), rank, {.shuffle = false});
  const auto mine = sampler.indices();
  Mean right, right_padded;
  for (std::size_t i = 0; i < mine.size(); ++i) {
    const double guess = mine[i] % 3 == 0 ? 1 : 0;
    const double weight = i < sampler.unpadded_size() ? 1 : 0;
    right.add(guess * weight, weight);
    right_padded.add(guess);
  }
  // One round trip for all three.
  const auto all = means_over(ranks, {loss, right, right_padded});
  say(process, fmt::format("mean over all samples={:.6f}\nmean of the ranks' means={:.6f}\n"
                           "accuracy={:.6f}\naccuracy with the padding={:.6f}",
                           all[0], means[0] / ranks.world_size(), all[1], all[2]));
}

}  // namespace

int main(int argc, char** argv) {
  examples::Flags flags("Shows means over ranks with unequal numbers of samples.");
  return examples::run_program(
      "metrics", flags, argc, argv, [] {}, run);
}
