// The world of a program that mpirun or srun started once for each rank, without ddprun: what their
// variables say, in place of those that a launcher gives a worker. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "proto/result.h"
#include "proto/worker_env.h"

namespace ddprun::worker {

// Nothing: neither started this process as one of several ranks. `run_id` is the same on all ranks, and
// master_addr is where rank 0 is. `parent` is the parent's pid: MPICH gives a job on one host no other
// name. Errors, each with what to type: nothing names the host of rank 0; the ranks are not numbered
// host by host; a variable makes no sense.
Result<std::optional<WorkerEnv>> mpi_world(const EnvLookup& env, int parent);

}  // namespace ddprun::worker
