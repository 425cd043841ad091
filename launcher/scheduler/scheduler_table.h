// Every scheduler and launcher that ddprun knows, in one table. It has the variables that tell it.
// Others say how many nodes there are and which one this is. docs/schedulers.md shows the table. No
// logic here. Constant; any thread.
#pragma once

#include <span>
#include <string_view>

namespace ddprun::launcher {

enum class Scheduler {
  kNone,
  // These started ddprun once on each node.
  kOpenMpi,
  kPals,
  kMpich,
  kSlurmStep,
  kJsrun,
  kFlux,
  kSageMaker,
  kSkyPilot,
  kDstack,
  kRunPod,
  kAzureMl,
  kLepton,
  kBeaker,
  kVertex,
  kMindCluster,
  kCondor,
  kVolcano,
  kIndexedJob,
  // These gave a job its hosts, and started ddprun on one of them.
  kSlurmJob,
  kPbs,
  kLsf,
  kLsfWithoutFile,
  kCobalt,
  kGridEngine,
  kFluxInstance,
  // Nothing of a job is known.
  kKubernetes,
  // Somebody set MASTER_ADDR, RANK and WORLD_SIZE for this process: an operator, or a script.
  kOperator,
};

enum class SchedulerKind {
  kLauncher,    // of processes: it started this one as one of them
  kPlatform,    // it started the user's command once on each node
  kPod,         // of Kubernetes
  kAllocation,  // it gave a job its hosts, and started this process on one of them
  kVariables,   // set by somebody
};

// Names of variables. An empty name: the scheduler does not say it.
struct SchedulerRow {
  Scheduler scheduler;
  SchedulerKind kind;
  std::string_view name;   // for people: "this Slurm step"
  std::string_view sign;   // it is this scheduler if the variable is set
  std::string_view nodes;  // how many; of a launcher that counts processes, processes
  std::string_view rank;   // which one this is
  std::string_view hosts;  // names of all of them, or of a file with a line for each slot
  std::string_view job;    // the same on all nodes, and no other job's
  std::string_view step{};
  std::string_view tasks{};  // processes on this node, or a list for all nodes
  // The command to type so that ddprun is started once on each of N nodes.
  std::string_view command{};
  // The way to name the first host if no variable does. Empty: the flags of the rendezvous.
  std::string_view hand_on{};
  std::string_view gpus{};     // GPUs of this node, each for a worker
  std::string_view id{};       // an id of the rendezvous begins with it
  std::string_view setting{};  // of the job's description, for one on each node
};

// In the order in which they are looked for. A daemon of Open MPI is itself a Slurm step, and its
// children have the variables of both.
std::span<const SchedulerRow> scheduler_table();

// Every scheduler but kNone has a row (asserted).
const SchedulerRow& row_of(Scheduler scheduler);

}  // namespace ddprun::launcher
