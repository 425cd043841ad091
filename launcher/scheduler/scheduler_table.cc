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
  SchedulerRow{.scheduler = Scheduler::kOpenMpi, .kind = SchedulerKind::kLauncher,
               .name = "Open MPI", .sign = names::kOpenMpi.ranks,
               .nodes = names::kOpenMpi.ranks, .rank = names::kOpenMpi.rank, .hosts = "",
               .job = names::kOpenMpi.job, .tasks = names::kOpenMpi.local_ranks,
               .command = "mpirun --map-by ppr:1:node", .hand_on = "-x MASTER_ADDR=HOST"},
  SchedulerRow{.scheduler = Scheduler::kPals, .kind = SchedulerKind::kLauncher,
               .name = "PALS", .sign = names::kPals.rank,
               .nodes = names::kPals.ranks, .rank = names::kPals.rank, .hosts = "",
               .job = names::kPals.job, .tasks = names::kPals.local_ranks,
               .command = "mpiexec -n {nodes} --ppn 1", .hand_on = "--env MASTER_ADDR=HOST"},
  SchedulerRow{.scheduler = Scheduler::kMpich, .kind = SchedulerKind::kLauncher,
               .name = "MPICH", .sign = names::kMpich.local_rank,
               .nodes = names::kMpich.ranks, .rank = names::kMpich.rank, .hosts = "", .job = "",
               .tasks = names::kMpich.local_ranks, .command = "mpiexec -n {nodes} -ppn 1",
               .hand_on = "-genv MASTER_ADDR HOST"},
  // Flux may itself run in a step of Slurm or of jsrun, and its jobs have the variables of both.
  SchedulerRow{.scheduler = Scheduler::kFlux, .kind = SchedulerKind::kPlatform,
               .name = "Flux job", .sign = names::kFlux.job,
               .nodes = names::kFlux.nodes, .rank = names::kFlux.rank, .hosts = "",
               .job = names::kFlux.job, .tasks = names::kFlux.ranks,
               .command = "flux run -N {nodes} --tasks-per-node=1",
               .hand_on = "--env=MASTER_ADDR=HOST", .id = "flux"},
  SchedulerRow{.scheduler = Scheduler::kFluxInstance, .kind = SchedulerKind::kAllocation,
               .name = "Flux allocation",
               .sign = names::kFluxUri, .nodes = "", .rank = "", .hosts = "", .job = "",
               .command = "flux run -N {nodes} --tasks-per-node=1"},
  SchedulerRow{.scheduler = Scheduler::kSlurmStep, .kind = SchedulerKind::kLauncher,
               .name = "Slurm step",
               .sign = names::kSlurmStep.step, .nodes = names::kSlurmStep.nodes,
               .rank = names::kSlurmStep.node, .hosts = names::kSlurmStep.hosts,
               .job = names::kSlurmStep.job, .step = names::kSlurmStep.step,
               .tasks = names::kSlurmStep.tasks,
               .command = "srun --ntasks-per-node=1 --nodes={nodes}"},
  SchedulerRow{.scheduler = Scheduler::kJsrun, .kind = SchedulerKind::kLauncher,
               .name = "jsrun", .sign = names::kJsrun.ranks,
               .nodes = names::kJsrun.ranks, .rank = names::kJsrun.rank, .hosts = "",
               .job = names::kJsrun.job, .step = names::kJsrun.step,
               .tasks = names::kJsrun.local_ranks,
               .command = "jsrun --nrs={nodes} --rs_per_host=1 --cpu_per_rs=ALL_CPUS "
                          "--gpu_per_rs=ALL_GPUS",
               .hand_on = "-E MASTER_ADDR=HOST"},
  SchedulerRow{.scheduler = Scheduler::kSageMaker, .kind = SchedulerKind::kPlatform,
               .name = "SageMaker",
               .sign = names::kSageMaker.hosts, .nodes = names::kSageMaker.hosts,
               .rank = names::kSageMaker.node, .hosts = names::kSageMaker.hosts,
               .job = names::kSageMaker.job, .gpus = names::kSageMaker.gpus, .id = "sagemaker"},
  SchedulerRow{.scheduler = Scheduler::kSkyPilot, .kind = SchedulerKind::kPlatform,
               .name = "SkyPilot task",
               .sign = names::kSkyPilot.nodes, .nodes = names::kSkyPilot.nodes,
               .rank = names::kSkyPilot.node, .hosts = names::kSkyPilot.hosts,
               .job = names::kSkyPilot.job, .gpus = names::kSkyPilot.gpus, .id = "skypilot"},
  SchedulerRow{.scheduler = Scheduler::kDstack, .kind = SchedulerKind::kPlatform,
               .name = "dstack run",
               .sign = names::kDstack.nodes, .nodes = names::kDstack.nodes,
               .rank = names::kDstack.node, .hosts = names::kDstack.hosts,
               .job = names::kDstack.job, .gpus = names::kDstack.gpus, .id = "dstack"},
  SchedulerRow{.scheduler = Scheduler::kRunPod, .kind = SchedulerKind::kPlatform,
               .name = "RunPod cluster",
               .sign = names::kRunPod.hosts, .nodes = names::kRunPod.nodes, .rank = "NODE_RANK",
               .hosts = names::kRunPod.hosts, .job = "", .gpus = names::kRunPod.gpus,
               .id = "runpod"},
  SchedulerRow{.scheduler = Scheduler::kAzureMl, .kind = SchedulerKind::kPlatform,
               .name = "Azure ML job",
               .sign = names::kAzureMl.nodes, .nodes = names::kAzureMl.nodes,
               .rank = "NODE_RANK", .hosts = "MASTER_ADDR", .job = names::kAzureMl.job,
               .tasks = "WORLD_SIZE", .id = "azureml",
               .setting = "`distribution: {type: pytorch, process_count_per_instance: 1}`"},
  SchedulerRow{.scheduler = Scheduler::kLepton, .kind = SchedulerKind::kPlatform,
               .name = "Lepton job",
               .sign = names::kLepton.nodes, .nodes = names::kLepton.nodes,
               .rank = names::kLepton.node, .hosts = "", .job = names::kLepton.job,
               .gpus = names::kLepton.gpus, .id = "lepton"},
  SchedulerRow{.scheduler = Scheduler::kBeaker, .kind = SchedulerKind::kPlatform,
               .name = "Beaker task",
               .sign = names::kBeaker.nodes, .nodes = names::kBeaker.nodes,
               .rank = names::kBeaker.node, .hosts = names::kBeaker.hosts,
               .job = names::kBeaker.job, .hand_on = "`leaderSelection: true`", .id = "beaker"},
  SchedulerRow{.scheduler = Scheduler::kVertex, .kind = SchedulerKind::kPlatform,
               .name = "Vertex job",
               .sign = names::kVertex.hosts, .nodes = names::kVertex.hosts,
               .rank = names::kVertex.hosts, .hosts = names::kVertex.hosts,
               .job = names::kVertex.job, .id = "vertex"},
  SchedulerRow{.scheduler = Scheduler::kMindCluster, .kind = SchedulerKind::kPlatform,
               .name = "MindCluster job",
               .sign = "LOCAL_WORLD_SIZE", .nodes = "WORLD_SIZE", .rank = "RANK",
               .hosts = "MASTER_ADDR", .job = "", .gpus = "LOCAL_WORLD_SIZE",
               .id = "mindcluster"},
  SchedulerRow{.scheduler = Scheduler::kCondor, .kind = SchedulerKind::kPlatform,
               .name = "HTCondor job",
               .sign = names::kCondor.nodes, .nodes = names::kCondor.nodes,
               .rank = names::kCondor.node, .hosts = "MASTER_ADDR", .job = "",
               .hand_on = "MASTER_ADDR=HOST before it, as condor_chirp can tell it,",
               .id = "htcondor"},
  SchedulerRow{.scheduler = Scheduler::kVolcano, .kind = SchedulerKind::kPlatform,
               .name = "Volcano job",
               .sign = names::kVolcano.node, .nodes = "", .rank = names::kVolcano.node,
               .hosts = "", .job = "", .id = "volcano"},
  SchedulerRow{.scheduler = Scheduler::kIndexedJob, .kind = SchedulerKind::kPod,
               .name = "indexed Job",
               .sign = names::kIndexedJob.node, .nodes = "", .rank = names::kIndexedJob.node,
               .hosts = "", .job = ""},
  SchedulerRow{.scheduler = Scheduler::kSlurmJob, .kind = SchedulerKind::kAllocation,
               .name = "Slurm job",
               .sign = names::kSlurmJob.job, .nodes = names::kSlurmJob.nodes, .rank = "",
               .hosts = names::kSlurmJob.hosts, .job = names::kSlurmJob.job,
               .command = "srun --ntasks-per-node=1 --nodes={nodes}"},
  SchedulerRow{.scheduler = Scheduler::kPbs, .kind = SchedulerKind::kAllocation,
               .name = "PBS job", .sign = names::kPbs.hosts,
               .nodes = "", .rank = "", .hosts = names::kPbs.hosts, .job = names::kPbs.job,
               .command = "mpiexec -n {nodes} --ppn 1"},
  SchedulerRow{.scheduler = Scheduler::kLsf, .kind = SchedulerKind::kAllocation,
               .name = "LSF job", .sign = names::kLsf.hosts,
               .nodes = "", .rank = "", .hosts = names::kLsf.hosts, .job = names::kLsf.job,
               .command = "jsrun --nrs=N --rs_per_host=1 --cpu_per_rs=ALL_CPUS "
                          "--gpu_per_rs=ALL_GPUS"},
  SchedulerRow{.scheduler = Scheduler::kLsfWithoutFile, .kind = SchedulerKind::kAllocation,
               .name = "LSF job",
               .sign = names::kLsfHostsAndSlots, .nodes = "", .rank = "",
               .hosts = names::kLsfHostsAndSlots, .job = names::kLsf.job,
               .command = "mpirun --map-by ppr:1:node"},
  SchedulerRow{.scheduler = Scheduler::kGridEngine, .kind = SchedulerKind::kAllocation,
               .name = "Grid Engine job",
               .sign = names::kGridEngine.hosts, .nodes = "NHOSTS", .rank = "",
               .hosts = names::kGridEngine.hosts, .job = "JOB_ID",
               .command = "mpirun --map-by ppr:1:node"},
  SchedulerRow{.scheduler = Scheduler::kCobalt, .kind = SchedulerKind::kAllocation,
               .name = "Cobalt job",
               .sign = names::kCobalt.hosts, .nodes = "", .rank = "",
               .hosts = names::kCobalt.hosts, .job = names::kCobalt.job,
               .command = "mpiexec -n {nodes} -ppn 1"},
  SchedulerRow{.scheduler = Scheduler::kOperator, .kind = SchedulerKind::kVariables,
               .name = "environment", .sign = "MASTER_ADDR",
               .nodes = "WORLD_SIZE", .rank = "RANK", .hosts = "MASTER_ADDR", .job = ""},
  SchedulerRow{.scheduler = Scheduler::kKubernetes, .kind = SchedulerKind::kPod,
               .name = "pod",
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
