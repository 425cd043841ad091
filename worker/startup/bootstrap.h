// bootstrap() without exceptions, for the parts of the engine that start ranks.
#pragma once

#include <ddprun/process.h>

#include "base/result.h"
#include "proto/worker_env.h"

namespace ddprun::worker {

// The public facts of a worker's environment.
World world_of(const WorkerEnv& env);

// bootstrap() in a process that is never a standby, since the program has forked it. The errors are
// those of bootstrap().
Result<Process> bootstrap_forked(const BootstrapOptions& options);

}  // namespace ddprun::worker
