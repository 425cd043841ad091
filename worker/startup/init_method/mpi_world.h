// The world of a program that mpirun, mpiexec, srun or jsrun started once for each rank, without
// ddprun. Their variables say it, in place of those that a launcher gives a worker. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/result.h"
#include "proto/worker_env.h"

namespace ddprun::worker {

// More are a typing error.
inline constexpr int kMostRanks = 1 << 20;

// Nothing if neither started this process as one of several ranks. `run_id` is the same on all
// ranks, and master_addr is where rank 0 is. `parent` is the parent's pid: MPICH gives a job on one
// host no other name. Errors, each with the command to type. Nothing names the host of rank 0, or
// ranks are not numbered host by host. A variable makes no sense; a starter that is seen does not
// say all of it.
Result<std::optional<WorkerEnv>> mpi_world(const EnvLookup& env, int parent);

// The variables of mpirun or srun for a process, without a place to meet at.
struct StartedRank {
  int rank = 0;
  int ranks = 1;
  std::string
      job;  // the same on all ranks, and no other job's; empty where the starter has no name for it
  bool one_host = false;  // it is known that all ranks are on this host
};

// Nothing if neither started this process. It makes no difference how the ranks are numbered.
// Errors: a variable makes no sense.
Result<std::optional<StartedRank>> started_rank(const EnvLookup& env);

}  // namespace ddprun::worker
