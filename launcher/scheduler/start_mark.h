// In which step or job of a scheduler this process was started. A worker, and whatever it starts,
// inherits the variables of its launcher's scheduler. A job that a worker submits (sbatch in
// train.py) has new ones, and old ones among them. A mark that workers are given tells them apart.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "launcher/scheduler/scheduler_table.h"
#include "proto/worker_env.h"

namespace ddprun::launcher {

// Workers have the mark of their launcher in it, unless that is empty.
inline constexpr const char* kStartMarkVariable = "DDPRUN_STARTED_IN";

// Returns the mark of each scheduler for the step or job that this process is in, from its
// variables. Empty if none says anything. Pure.
std::string start_mark(const EnvLookup& env);

// Returns whether `scheduler` says something else in `now` than in `then`, both start_mark()'s. One
// that names no job never does. Pure.
bool is_started_anew(std::string_view then, std::string_view now, Scheduler scheduler);

// Returns the step that the nearest slurmstepd above this process names: `4711.0`, `4711.batch`. It
// says so in its title. Empty if there is none that we see. Reads /proc.
std::string slurm_step_above();

// Returns whether somebody typed this command at the terminal that is ours. Its shell gave it a
// process group of its own, which a script's shell does not.
bool is_typed_at_terminal();

}  // namespace ddprun::launcher
