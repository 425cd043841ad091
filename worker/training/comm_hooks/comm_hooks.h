// Communication hooks that are made already, for DataParallel::comm_hook().
// worker/training/data_parallel/bucket.h says how to write another one.
#pragma once

#include <ATen/core/Tensor.h>

#include "worker/training/data_parallel/bucket.h"

namespace ddprun::worker {

// Divides by the number of ranks, and sums. As without a hook, but for last bits. Without one the
// gradients are multiplied by 1/N where they are copied anyway.
CommHook all_reduce_hook();

// The average travels as at::kHalf or at::kBFloat16: half the bytes. Each rank's gradient is
// divided in its own precision and then rounded, and the sum is rounded once. So |error| <= 2 e sum
// |g|/N, where e is 2^-11 or 2^-8. "hierarchical" rounds each host's sum first: 3 e. Buckets of 16
// bits travel as they are. Throws std::invalid_argument for another dtype. The hook holds memory:
// use one for one DataParallel.
CommHook compressed_hook(at::ScalarType wire);

// The other way round, for buckets of 16 bits. The average travels and is added in float32. It is
// rounded once, where it comes back. Others go as with all_reduce_hook(). PyTorch's reduce_dtype,
// for one value of it.
CommHook float32_sum_hook();

// Any other hook, on a copy of the bucket in that dtype. all_reduce_hook() rounds at each addition
// there.
CommHook compress_wrapper(CommHook inner, at::ScalarType wire);

}  // namespace ddprun::worker
