// The GPU of this rank, and those of all others. A thin shell around gpu_choice.h: it asks CUDA,
// and the ranks tell each other. bootstrap() and spawn() use it, on the main thread.
#pragma once

#include <string>

#include "base/result.h"
#include "worker/collective/core/exchange.h"
#include "worker/startup/gpu_choice.h"

namespace ddprun::worker {

// Fills in `visible`, and returns the number of this rank's GPU. Error: kInvalidArgument, it has
// none.
Result<int> own_gpu(GpuQuestion question);

// Tells all ranks which GPU this one has, or why it has none, and hears of theirs. Returns why the
// ranks cannot use GPUs; empty if each has one of its own. Errors: those of the exchange. All ranks
// must call it.
Result<std::string> why_no_gpus(int rank, const Result<int>& gpu, Exchange& exchange);

}  // namespace ddprun::worker
