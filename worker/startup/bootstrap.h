// From a worker's environment to a ready collective: reads the environment that ddprun (or
// torchrun) gave this process, connects to the job's store and meets the other ranks. Keeps nothing
// itself; the caller owns what it returns. Call it on the main thread, before the program starts
// threads that could change the environment.
//
//   auto process = ddprun::worker::bootstrap();
//   if (!process) {
//     fmt::print(stderr, "{}\n", process.error().message());
//     return 1;
//   }
//   ddprun::worker::DataParallel parallel(net.ptr(), *process->collective);
#pragma once

#include <chrono>
#include <memory>

#include "proto/result.h"
#include "proto/worker_env.h"
#include "worker/collective/collective.h"
#include "worker/tcp/tcp_collective.h"

namespace ddprun::worker {

// A rank waits so long for the others, then gives up. The limit is long because a rank may load
// data or save a checkpoint meanwhile. On CPU the error names the missing rank, and a rank that
// died is noticed much sooner, within some 10 ms.
inline constexpr std::chrono::seconds kCollectiveTimeout{600};

struct BootstrapOptions {
  Device device = Device::kCpu;  // where the model will live; kCuda takes GPU number local_rank
  // The limit for meeting the other ranks, and then for each wait of the collective.
  std::chrono::seconds timeout = kCollectiveTimeout;
  // What sums of float32 travel as between hosts, on CPU: those of TensorVerbs, too. The same on all ranks.
  Wire wire = Wire::kExact;
  // Of the connections between hosts, on CPU; empty: the host's (tcp_collective.h).
  std::string congestion_control = kCongestionControl;
};

// What bootstrap hands to the training program, which owns it.
struct Process {
  // Rank, local_rank, world_size, restart_count, run_id, …; of a world of one if `launched` is
  // false.
  WorkerEnv world;
  bool launched = false;  // false: started by hand, without a launcher's environment
  // Under mpirun or srun alone: the job's store, which rank 0 serves. Else nothing.
  std::shared_ptr<void> store;
  std::unique_ptr<Collective> collective;
};

// Meets the other ranks of the job and returns when all are there. Without a launcher's environment
// it makes a world of one; but under mpirun or srun, which start a process for each rank, the world
// of those, and rank 0 serves the store. On CPU the ranks of a host use shared memory, and hosts use
// TCP; on CUDA they use NCCL. Errors are one line each: a broken environment, nothing that names the
// host of rank 0, no store that a launcher serves, no answer at MASTER_ADDR:MASTER_PORT, hosts that
// cannot reach each other, no GPU, or a rank that does not come within the timeout. Throws
// LoggedError if shared memory cannot be had: rank 0 has logged why, one line for the host.
// ddprun may start this program as a standby (docs/recovery.md): then it waits here until it is needed.
Result<Process> bootstrap(const BootstrapOptions& options = {});

}  // namespace ddprun::worker
