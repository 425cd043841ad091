// The collective of ranks that have a GPU each. It uses NCCL, the same library file that torch
// loads. Its communicator is non-blocking and its work runs on a high-priority stream. Every wait
// looks for errors and for the deadline. Waits block the host thread: the program issues no kernels
// meanwhile. Builds whose torch has no NCCL headers contain nccl_absent.cc instead, which refuses.
// The training thread or the autograd thread calls it, as collective.h says.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "proto/result.h"
#include "worker/collective/collective.h"
#include "worker/collective/exchange.h"

namespace ddprun::worker {

struct NcclJob {
  int rank = 0;
  int ranks = 1;
  int local_rank = 0;                   // the number of this rank's GPU
  std::chrono::milliseconds timeout{};  // of the bring-up, and of each collective afterwards
  Ticket last_ticket = 0;               // tickets count on from here: tests start below the wrap
};

// All ranks must call it: they meet over `exchange`. Makes GPU local_rank this thread's current
// device. Errors: this build has no NCCL, there is no such GPU, NCCL fails, or a rank does not come
// in time. Sums of 16-bit floats may round more than once: NCCL decides.
Result<std::unique_ptr<Collective>> join_nccl(const NcclJob& job, Exchange& exchange);

// Why join_nccl cannot work here; empty if it can. For tests that need a GPU, and for programs that
// choose a device.
std::string why_no_gpu();

}  // namespace ddprun::worker
