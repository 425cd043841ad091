#include "launcher/scheduler/scheduler_table.h"

#include <algorithm>
#include <array>

#include "base/assert.h"

namespace ddprun::launcher {
namespace {

// Sources: Open MPI 4.1 mpirun(1); HPE PALS mpiexec(1). MPICH 4.0's hydra, as it was seen to set
// them. Slurm 22.05 srun(1), sbatch(1), and 23.02 for the end time. IBM Job Step Manager, jsrun(1),
// and LSF 10.1 "Environment variable reference". sagemaker-training-toolkit
// ENVIRONMENT_VARIABLES.md; Kubernetes "Indexed Job" and JobSet. PBS qsub(1B); Cobalt qsub(1).
// clang-format off
constexpr std::array kTable = {
  SchedulerRow{.scheduler = Scheduler::kOpenMpi, .name = "Open MPI", .sign = "OMPI_COMM_WORLD_SIZE",
               .nodes = "OMPI_COMM_WORLD_SIZE", .rank = "OMPI_COMM_WORLD_RANK", .hosts = "",
               .job = "PMIX_NAMESPACE",
               .tasks = "OMPI_COMM_WORLD_LOCAL_SIZE", .command = "mpirun --map-by ppr:1:node",
               .hand_on = "-x MASTER_ADDR=HOST"},
  SchedulerRow{.scheduler = Scheduler::kPals, .name = "PALS", .sign = "PALS_RANKID",
               .nodes = "PMI_SIZE", .rank = "PALS_RANKID", .hosts = "", .job = "PALS_APID",
               .tasks = "PALS_LOCAL_SIZE", .command = "mpiexec -n {nodes} --ppn 1",
               .hand_on = "--env MASTER_ADDR=HOST"},
  SchedulerRow{.scheduler = Scheduler::kMpich, .name = "MPICH", .sign = "MPI_LOCALRANKID",
               .nodes = "PMI_SIZE", .rank = "PMI_RANK", .hosts = "", .job = "",
               .tasks = "MPI_LOCALNRANKS", .command = "mpiexec -n {nodes} -ppn 1",
               .hand_on = "-genv MASTER_ADDR HOST"},
  SchedulerRow{.scheduler = Scheduler::kSlurmStep, .name = "Slurm step", .sign = "SLURM_STEP_ID",
               .nodes = "SLURM_STEP_NUM_NODES", .rank = "SLURM_NODEID",
               .hosts = "SLURM_STEP_NODELIST", .job = "SLURM_JOB_ID",
               .step = "SLURM_STEP_ID", .tasks = "SLURM_STEP_TASKS_PER_NODE",
               .deadline = "SLURM_JOB_END_TIME",
               .command = "srun --ntasks-per-node=1 --nodes={nodes}"},
  SchedulerRow{.scheduler = Scheduler::kJsrun, .name = "jsrun", .sign = "JSM_NAMESPACE_SIZE",
               .nodes = "JSM_NAMESPACE_SIZE", .rank = "JSM_NAMESPACE_RANK", .hosts = "",
               .job = "LSB_JOBID",
               .step = "PMIX_NAMESPACE", .tasks = "JSM_NAMESPACE_LOCAL_SIZE",
               .command = "jsrun --nrs={nodes} --rs_per_host=1 --cpu_per_rs=ALL_CPUS "
                          "--gpu_per_rs=ALL_GPUS",
               .hand_on = "-E MASTER_ADDR=HOST"},
  SchedulerRow{.scheduler = Scheduler::kSageMaker, .name = "SageMaker", .sign = "SM_HOSTS",
               .nodes = "SM_HOSTS", .rank = "SM_CURRENT_HOST", .hosts = "SM_HOSTS",
               .job = "TRAINING_JOB_NAME"},
  SchedulerRow{.scheduler = Scheduler::kIndexedJob, .name = "indexed Job",
  .sign = "JOB_COMPLETION_INDEX",
               .nodes = "", .rank = "JOB_COMPLETION_INDEX", .hosts = "", .job = ""},
  SchedulerRow{.scheduler = Scheduler::kSlurmJob, .name = "Slurm job", .sign = "SLURM_JOB_ID",
               .nodes = "SLURM_JOB_NUM_NODES", .rank = "", .hosts = "SLURM_JOB_NODELIST",
               .job = "SLURM_JOB_ID",
               .deadline = "SLURM_JOB_END_TIME",
               .command = "srun --ntasks-per-node=1 --nodes={nodes}"},
  SchedulerRow{.scheduler = Scheduler::kPbs, .name = "PBS job", .sign = "PBS_NODEFILE",
               .nodes = "", .rank = "", .hosts = "PBS_NODEFILE", .job = "PBS_JOBID",
               .command = "mpiexec -n {nodes} --ppn 1"},
  SchedulerRow{.scheduler = Scheduler::kLsf, .name = "LSF job", .sign = "LSB_DJOB_HOSTFILE",
               .nodes = "", .rank = "", .hosts = "LSB_DJOB_HOSTFILE", .job = "LSB_JOBID",
               .command = "jsrun --nrs=N --rs_per_host=1 --cpu_per_rs=ALL_CPUS "
                          "--gpu_per_rs=ALL_GPUS"},
  SchedulerRow{.scheduler = Scheduler::kCobalt, .name = "Cobalt job", .sign = "COBALT_NODEFILE",
               .nodes = "", .rank = "", .hosts = "COBALT_NODEFILE", .job = "COBALT_JOBID",
               .command = "mpiexec -n {nodes} -ppn 1"},
  SchedulerRow{.scheduler = Scheduler::kOperator, .name = "environment", .sign = "MASTER_ADDR",
               .nodes = "WORLD_SIZE", .rank = "RANK", .hosts = "MASTER_ADDR", .job = ""},
  SchedulerRow{.scheduler = Scheduler::kKubernetes, .name = "pod",
  .sign = "KUBERNETES_SERVICE_HOST",
               .nodes = "", .rank = "", .hosts = "", .job = ""},
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
