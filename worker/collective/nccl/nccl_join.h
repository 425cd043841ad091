// How ranks with a GPU each form an NCCL collective: all of join_nccl() that does not need
// LibTorch.
#pragma once

#include <memory>

#include "worker/collective/nccl/cuda_parts.h"
#include "worker/collective/nccl/nccl_collective.h"
#include "worker/collective/nccl/nccl_optional.h"

namespace ddprun::worker {

struct NcclParts {
  NcclJob job;
  GpuStreams streams;
  NcclOptional optional;
};

// As join_nccl().
Result<std::unique_ptr<Collective>> join_nccl_on(const NcclParts& parts, Exchange& exchange,
                                                 std::unique_ptr<DesyncBoard> board);

}  // namespace ddprun::worker
