// The collective of ranks that have a GPU each. It uses NCCL, the same library file that torch
// loads. Its communicator is non-blocking, and its work runs on a high-priority stream of its own.
//
// Sums, broadcasts, sends and receives block nobody. They begin after the current stream's earlier
// work. wait() and the other three make the current stream wait for them. Operations that return
// what others bring (all_gather, barrier) block the host until it is there. A thread of the
// collective looks for errors and deadlines (nccl_watcher.h). At a failure it aborts the
// communicator, so that no stream and no host waits for ever. The next call throws the reason. So a
// program must not trust what it computes until check() or another call has returned. DataParallel
// asks in forward() and in step().
//
// Builds whose torch has no NCCL headers contain nccl_absent.cc instead, which refuses. The
// training thread or the autograd thread calls it, as collective.h says.
#pragma once

#include <ddprun/collective.h>
#include <ddprun/process.h>

#include <chrono>
#include <memory>
#include <optional>
#include <string>

#include "base/result.h"
#include "worker/collective/core/desync_board.h"
#include "worker/collective/core/exchange.h"

namespace ddprun::worker {

struct NcclJob {
  int rank = 0;
  int ranks = 1;
  int gpu = 0;                          // the number of this rank's GPU
  std::chrono::milliseconds timeout{};  // of the bring-up, and of each operation afterwards
  // The GPU whose collectives fail together with this one; its own, if it is unset.
  std::optional<int> fails_with = {};
  Ticket last_ticket = 0;  // tickets count on from here: tests start below the wrap
};

// All ranks must call it: they meet over `exchange`. Makes GPU `gpu` this thread's current
// device. Errors: this build has no NCCL, or there is no such GPU. Or NCCL fails, or a rank does
// not come in time. Sums of 16-bit floats may round more than once: NCCL decides. With a `board`
// ranks that wait for long compare what they do (desync_report.h): all must give one, cleared, or
// none.
Result<std::unique_ptr<Collective>> join_nccl(const NcclJob& job, Exchange& exchange,
                                              std::unique_ptr<DesyncBoard> board = nullptr);

// Returns how many GPUs this process sees; 0 where why_no_gpu() says why.
int gpu_count();

// Returns an id of this GPU that no other one has (its UUID, in hex). `gpu`: below gpu_count().
std::string gpu_id(int gpu);

}  // namespace ddprun::worker
