// From a worker's environment to a ready collective: reads what ddprun (or torchrun) gave this
// process, connects to the job's store, meets the other ranks. Holds nothing but what it returns.
//
//   auto process = ddprun::worker::bootstrap();
//   if (!process) { fmt::print(stderr, "{}\n", process.error().message()); return 1; }
//   ddprun::worker::DataParallel parallel(net.ptr(), *process->collective);
#pragma once

#include <chrono>
#include <memory>

#include "proto/result.h"
#include "proto/worker_env.h"
#include "worker/collective/collective.h"

namespace ddprun::worker {

// A collective that makes no progress for so long is given up, with an error that names the missing
// rank. Long, because one rank may load data or save a checkpoint meanwhile; a dead rank on the
// same host is noticed within 100 ms regardless.
inline constexpr std::chrono::seconds kCollectiveTimeout{600};

struct BootstrapOptions {
  Device device = Device::kCpu;  // where the model will live; kCuda takes GPU number local_rank
  // Of exchange the others, and of each collective afterwards.
  std::chrono::seconds timeout = kCollectiveTimeout;
};

// What bootstrap hands to the training program, which owns it.
struct Process {
  // Rank, local_rank, world_size, restart_count, run_id, …; a world of one by default.
  WorkerEnv world;
  bool launched = false;  // false: started by hand, without a launcher's environment
  std::unique_ptr<Collective> collective;
};

// Meets the other ranks of the job; returns when all are there. Without a launcher's environment: a
// world of one. CPU: all ranks must be on this host (shared memory). CUDA: NCCL, any hosts. Errors,
// one line each: a broken environment, no store at MASTER_ADDR:MASTER_PORT, no launcher's store,
// CPU ranks on several hosts, no GPU, a rank that does not come within the timeout. Throws
// LoggedError where shared memory is too small: one line for the host is in the log already.
Result<Process> bootstrap(const BootstrapOptions& options = {});

}  // namespace ddprun::worker
