// The operations of collective.h as calls of NCCL. One thread at a time.
#pragma once

#include <ddprun/collective.h>
#include <nccl.h>

#include "worker/collective/core/parts.h"

namespace ddprun::worker {

// The rank that calls, and the stream that gets NCCL's kernels.
struct NcclPlace {
  int rank = 0;
  int ranks = 1;
  cudaStream_t stream = nullptr;
};

// Makes the calls of one operation, in a group if there are several. Returns NCCL's answer. Throws
// CollectiveError if CUDA fails.
ncclResult_t call_nccl_for(const Flat& flat, const LaunchRequest& request, const NcclPlace& here,
                           ncclComm_t comm);

// Returns the words for messages: "rank 0: launch of a sum: …".
const char* doing(const LaunchRequest& request);

}  // namespace ddprun::worker
