#include "launcher/scheduler/scheduler_table.h"

#include <algorithm>
#include <array>

#include "base/assert.h"
#include "proto/scheduler_variables.h"

namespace ddprun::launcher {

namespace names = scheduler_variables;

namespace {

// clang-format off
constexpr std::array kTable = {
  SchedulerRow{.scheduler = Scheduler::kOpenMpi, .name = "Open MPI", .sign = names::kOpenMpi.ranks,
               .nodes = names::kOpenMpi.ranks, .rank = names::kOpenMpi.rank, .hosts = "",
               .job = names::kOpenMpi.job, .tasks = names::kOpenMpi.local_ranks,
               .command = "mpirun --map-by ppr:1:node", .hand_on = "-x MASTER_ADDR=HOST"},
  SchedulerRow{.scheduler = Scheduler::kPals, .name = "PALS", .sign = names::kPals.rank,
               .nodes = names::kPals.ranks, .rank = names::kPals.rank, .hosts = "",
               .job = names::kPals.job, .tasks = names::kPals.local_ranks,
               .command = "mpiexec -n {nodes} --ppn 1", .hand_on = "--env MASTER_ADDR=HOST"},
  SchedulerRow{.scheduler = Scheduler::kMpich, .name = "MPICH", .sign = names::kMpich.local_rank,
               .nodes = names::kMpich.ranks, .rank = names::kMpich.rank, .hosts = "", .job = "",
               .tasks = names::kMpich.local_ranks, .command = "mpiexec -n {nodes} -ppn 1",
               .hand_on = "-genv MASTER_ADDR HOST"},
  SchedulerRow{.scheduler = Scheduler::kSlurmStep, .name = "Slurm step",
               .sign = names::kSlurmStep.step, .nodes = names::kSlurmStep.nodes,
               .rank = names::kSlurmStep.node, .hosts = names::kSlurmStep.hosts,
               .job = names::kSlurmStep.job, .step = names::kSlurmStep.step,
               .tasks = names::kSlurmStep.tasks,
               .command = "srun --ntasks-per-node=1 --nodes={nodes}"},
  SchedulerRow{.scheduler = Scheduler::kJsrun, .name = "jsrun", .sign = names::kJsrun.ranks,
               .nodes = names::kJsrun.ranks, .rank = names::kJsrun.rank, .hosts = "",
               .job = names::kJsrun.job, .step = names::kJsrun.step,
               .tasks = names::kJsrun.local_ranks,
               .command = "jsrun --nrs={nodes} --rs_per_host=1 --cpu_per_rs=ALL_CPUS "
                          "--gpu_per_rs=ALL_GPUS",
               .hand_on = "-E MASTER_ADDR=HOST"},
  SchedulerRow{.scheduler = Scheduler::kSageMaker, .name = "SageMaker",
               .sign = names::kSageMaker.hosts, .nodes = names::kSageMaker.hosts,
               .rank = names::kSageMaker.node, .hosts = names::kSageMaker.hosts,
               .job = names::kSageMaker.job},
  SchedulerRow{.scheduler = Scheduler::kIndexedJob, .name = "indexed Job",
               .sign = names::kIndexedJob.node, .nodes = "", .rank = names::kIndexedJob.node,
               .hosts = "", .job = ""},
  SchedulerRow{.scheduler = Scheduler::kSlurmJob, .name = "Slurm job",
               .sign = names::kSlurmJob.job, .nodes = names::kSlurmJob.nodes, .rank = "",
               .hosts = names::kSlurmJob.hosts, .job = names::kSlurmJob.job,
               .command = "srun --ntasks-per-node=1 --nodes={nodes}"},
  SchedulerRow{.scheduler = Scheduler::kPbs, .name = "PBS job", .sign = names::kPbs.hosts,
               .nodes = "", .rank = "", .hosts = names::kPbs.hosts, .job = names::kPbs.job,
               .command = "mpiexec -n {nodes} --ppn 1"},
  SchedulerRow{.scheduler = Scheduler::kLsf, .name = "LSF job", .sign = names::kLsf.hosts,
               .nodes = "", .rank = "", .hosts = names::kLsf.hosts, .job = names::kLsf.job,
               .command = "jsrun --nrs=N --rs_per_host=1 --cpu_per_rs=ALL_CPUS "
                          "--gpu_per_rs=ALL_GPUS"},
  SchedulerRow{.scheduler = Scheduler::kCobalt, .name = "Cobalt job",
               .sign = names::kCobalt.hosts, .nodes = "", .rank = "",
               .hosts = names::kCobalt.hosts, .job = names::kCobalt.job,
               .command = "mpiexec -n {nodes} -ppn 1"},
  SchedulerRow{.scheduler = Scheduler::kOperator, .name = "environment", .sign = "MASTER_ADDR",
               .nodes = "WORLD_SIZE", .rank = "RANK", .hosts = "MASTER_ADDR", .job = ""},
  SchedulerRow{.scheduler = Scheduler::kKubernetes, .name = "pod",
               .sign = names::kKubernetesService, .nodes = "", .rank = "", .hosts = "", .job = ""},
};
// clang-format on

}  // namespace

std::span<const SchedulerRow> scheduler_table() { return kTable; }

const SchedulerRow& row_of(Scheduler scheduler) {
  const auto* found = std::find_if(kTable.begin(), kTable.end(), [&](const SchedulerRow& row) {
    return row.scheduler == scheduler;
  });
  DDPRUN_ASSERT(found != kTable.end());
  return *found;
}

}  // namespace ddprun::launcher
