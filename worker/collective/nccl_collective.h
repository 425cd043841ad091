// The collective of ranks with a GPU each: NCCL, the very library that torch loads. Non-blocking
// communicator, own high-priority stream, no wait without looking for errors and the deadline.
// Waits hold the host thread: a step that goes on issuing kernels meanwhile is later work. Absent
// from builds whose torch came without NCCL's headers.
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
  Ticket last_ticket = 0;  // tickets count on from here, so that the wrap can be tested
};

// Collective over the exchange. Makes GPU local_rank this thread's current device. Errors: no NCCL
// in this build, no such GPU, NCCL's own, a rank that does not come in time. 16-bit sums round as
// NCCL does, not once.
Result<std::unique_ptr<Collective>> join_nccl(const NcclJob& job, Exchange& exchange);

// Why join_nccl cannot work here, or empty: for tests that need a GPU, and for choosing a device.
std::string why_no_gpu();

}  // namespace ddprun::worker
