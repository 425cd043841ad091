// The facts of a job on a platform that starts the user's command once on each node. Platforms are
// clouds, and clusters whose variables are none of a launcher of MPI. Reads and decides nothing.
// Pure, but for the questions in SchedulerInputs. Main thread.
#pragma once

#include "base/environment.h"
#include "launcher/scheduler/scheduler_facts.h"
#include "launcher/scheduler/scheduler_table.h"

namespace ddprun::launcher {

// Returns whether a row's sign is that of its platform. Some names are those of other programs too.
bool is_on_platform(const SchedulerRow& row, const EnvLookup& env);

// Nodes, this one's rank, the first host, the id of the job and the GPUs. `problem` says what the
// user has to change where the variables do not suffice.
SchedulerFacts read_platform(const SchedulerRow& row, const EnvLookup& env,
                             const SchedulerInputs& inputs);

}  // namespace ddprun::launcher
