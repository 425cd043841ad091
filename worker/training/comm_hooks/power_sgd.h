// PowerSGD as a communication hook. See Vogels, Karimireddy, Jaggi: "PowerSGD: Practical Low-Rank
// Gradient Compression for Distributed Optimization", NeurIPS 2019, algorithms 1 and 2. The
// gradient of a matrix travels as two thin matrices; what they cannot carry is added to the next
// gradient. The rules and the numbers are those of PyTorch 2.11
// (torch/distributed/algorithms/ddp_comm_hooks/powerSGD_hook.py).
#pragma once

#include <cstdint>

#include "worker/training/data_parallel/bucket.h"

namespace ddprun::worker {

struct PowerSgdOptions {
  std::int64_t matrix_approximation_rank = 1;  // columns of the thin matrices
  // So many passes are plain sums at first: early gradients change fast. At least 2, since the
  // buckets are rebuilt after the first pass.
  std::int64_t start_iteration = 1000;
  double min_compression_rate = 2;  // what would shrink less travels as it is
  bool use_error_feedback = true;
  bool warm_start = true;  // the thin matrices of a pass begin with those of the pass before
  double orthogonalization_epsilon = 0;
  std::uint32_t random_seed = 0;  // the same on all ranks
};

// Throws std::invalid_argument for a rank below 1, and for a start below 2. The hook holds memory
// and errors of its DataParallel: use one for one.
CommHook power_sgd_hook(const PowerSgdOptions& options = {});

}  // namespace ddprun::worker
