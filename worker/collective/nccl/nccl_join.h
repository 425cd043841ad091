// How ranks with a GPU each form an NCCL collective: all of join_nccl() that does not need
// LibTorch.
#pragma once

#include <chrono>
#include <functional>
#include <memory>

#include "worker/collective/nccl/cuda_parts.h"
#include "worker/collective/nccl/nccl_collective.h"
#include "worker/collective/nccl/nccl_monitor.h"
#include "worker/collective/nccl/nccl_optional.h"

namespace ddprun::worker {

// How long what may hang is given. Tests have less time.
struct NcclLimits {
  std::chrono::milliseconds abort{4'000};     // for the abort after a failure
  std::chrono::milliseconds silence{60'000};  // for CUDA to answer the watcher, beyond the timeout
};

struct NcclParts {
  NcclJob job;
  GpuProgram program;
  NcclOptional optional;
  NcclLimits limits{};
  EndProcess end_process = end_process_with_records;
  // The program on another GPU of this process, for Collective::on_gpu().
  std::function<GpuProgram(int gpu)> program_on{};
};

// As join_nccl().
Result<std::unique_ptr<Collective>> join_nccl_on(const NcclParts& parts, Exchange& exchange,
                                                 std::unique_ptr<DesyncBoard> board);

}  // namespace ddprun::worker
