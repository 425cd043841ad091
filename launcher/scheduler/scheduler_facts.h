// The facts of the job in the variables of the scheduler or launcher that started this process.
// They are its name, how many nodes there are, which one this is, and where the first one is. It
// reads variables, and decides nothing: placement.h does. Pure but for the files that a variable
// names, which come in as a function. Main thread, before anything else is started.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "launcher/scheduler/scheduler_table.h"
#include "proto/job_ports.h"
#include "proto/worker_env.h"

namespace ddprun::launcher {

// The questions of the detection beside the variables. Each is called only if a variable asks for
// it.
struct SchedulerInputs {
  // The text of a file; nothing if it cannot be read.
  std::function<std::optional<std::string>(const std::string& path)> read_file{};
  // This host's name with its domain, as its hosts file or DNS has it.
  std::function<std::string()> full_host_name{};
  std::function<std::string()> slurm_step_above{};  // start_mark.h
  std::function<bool()> is_typed_at_terminal{};
  // Returns the output of a program. Nothing if it is not there, fails or takes too long. For Flux.
  std::function<std::optional<std::string>(const std::vector<std::string>& words)> ask{};
  std::function<std::vector<std::string>()> variable_names{};  // for Volcano
};

// Nodes by the variables of an operator or a script.
struct OperatorWords {
  int nodes = 0;
  int node_rank = 0;
  std::string first_host{};
};

struct SchedulerFacts {
  Scheduler scheduler = Scheduler::kNone;
  // ddprun was started once on each node; otherwise the job has nodes, and ddprun is on one.
  bool is_step = false;
  int nodes = 1;      // of the step or the job; 0: the scheduler does not say it
  int node_rank = 0;  // 0 … nodes-1
  // The most processes that the step has on one node. Each would be a ddprun.
  int most_tasks = 1;
  std::string first_host{};  // of node rank 0; empty: nobody names it
  std::string id{};          // of the job, for the rendezvous; empty for one that has only hosts
  // The first of the kJobPorts ports at which nodes may meet.
  std::uint16_t first_port = 0;
  int job_nodes = 1;      // of the whole job, where the step is a part of it; 0: not said
  int cpus_per_task = 0;  // of the one task that this node has; 0: not said
  int gpus = 0;           // of this node, each for a worker; 0: not said
  std::optional<std::chrono::sys_seconds> ends_at{};  // when the scheduler ends the job
  std::string slurm_job{};                            // Slurm's number of the job; empty: another's
  bool in_pod = false;
  // Parts of a heterogeneous job of Slurm, each an allocation of its own. A step runs on one of
  // them, or on several; job_nodes are those of all.
  int het_components = 1;
  // The variables that somebody set beside the scheduler: MASTER_ADDR, WORLD_SIZE above 1 and RANK.
  std::optional<OperatorWords> by_operator{};
  // A shell that somebody types in is the step's task: `srun --pty bash`. It is an allocation then.
  bool is_interactive_step = false;
  // Why what was found makes no sense; empty if it does.
  std::string problem{};
};

// In a worker of a launcher the variables are those of the launcher. They count only if they name
// another step or job than it was started in (DDPRUN_STARTED_IN; torchrun's workers have none).
SchedulerFacts detect_scheduler(const EnvLookup& env, const SchedulerInputs& facts);

}  // namespace ddprun::launcher
