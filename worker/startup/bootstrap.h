// From a worker's environment to a ready collective. It reads the environment that ddprun (or
// torchrun) gave this process. It connects to the job's store and meets the other ranks. Keeps
// nothing itself; the caller owns what it returns. Call it on the main thread, before the program
// starts threads that could change the environment.
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
#include <optional>
#include <string>

#include "base/result.h"
#include "proto/worker_env.h"
#include "worker/collective/core/collective.h"
#include "worker/collective/tcp/tcp_collective.h"

namespace ddprun::worker {

// A rank waits so long for the others, then gives up. The limit is long because a rank may load
// data or save a checkpoint meanwhile. On CPU the error names the missing rank. A rank that died is
// noticed much sooner, within some 10 ms. If ranks share cores, it is up to kAllTimeSlices later.
inline constexpr std::chrono::seconds kCollectiveTimeout{600};

struct BootstrapOptions {
  Device device = Device::kCpu;  // where the model will live; kCuda takes GPU number local_rank
  // With kCuda: the CPU, where this host has fewer GPUs than ranks, or this build has no NCCL. Each
  // host decides for itself, so all must be alike.
  bool cpu_instead = false;
  // The limit for meeting the other ranks, and then for each wait of the collective.
  std::chrono::seconds timeout = kCollectiveTimeout;
  // The format in which sums of float32 travel between hosts, on CPU: those of TensorVerbs, too.
  // The same on all ranks.
  Wire wire = Wire::kExact;
  // The algorithm of the connections between hosts, on CPU; empty: the host's (tcp_collective.h).
  std::string congestion_control = kCongestionControl;
  // On CPU, where ranks of this host share cores: long time slices (time_slices.h).
  bool long_time_slices = true;
  // The way in which the ranks meet. `env://`: by the variables of a launcher or of mpirun and
  // srun. `file:///PATH`: by a file on a file system that all of them share. Empty:
  // DDPRUN_INIT_METHOD, and `env://` where that is not set.
  std::string init_method = {};
  // With a file alone, and both or neither. Else they are RANK and WORLD_SIZE, or what mpirun and
  // srun say.
  std::optional<int> rank = std::nullopt;
  std::optional<int> world_size = std::nullopt;
};

// The result of bootstrap, which the training program owns.
struct Process {
  // Rank, local_rank, world_size, restart_count, run_id, …; of a world of one if `launched` is
  // false.
  WorkerEnv world;
  bool launched = false;  // false: started by hand, without a launcher's environment
  // The job's store, which rank 0 serves, if no launcher serves one.
  std::shared_ptr<void> store;
  std::unique_ptr<Collective> collective;
};

// Meets the other ranks of the job and returns when all are there. Without a launcher's environment
// it makes a world of one. mpirun and srun start a process for each rank. Then it makes the world
// of those, and rank 0 serves the store. Ranks that meet at a file need no starter at all
// (file_meeting.h). On CPU the ranks of a host use shared memory, and hosts use TCP; on CUDA they
// use NCCL. Errors are one line each. A broken environment, nothing that names the host of rank 0,
// a file at which ranks cannot meet. No store that a launcher serves, no answer at
// MASTER_ADDR:MASTER_PORT, hosts that cannot reach each other. No GPU, or a rank that does not come
// within the timeout. Throws LoggedError if shared memory cannot be had: rank 0 has logged why, one
// line for the host. ddprun may start this program as a standby (docs/recovery.md): then it waits
// here until it is needed.
Result<Process> bootstrap(const BootstrapOptions& options = {});

// bootstrap() in a process that is never a standby, since the program has forked it: spawn() calls
// it.
Result<Process> bootstrap_forked(const BootstrapOptions& options);

}  // namespace ddprun::worker
