// The names of the variables that schedulers and launchers of MPI give their processes. Each name
// stands here once, for two readers: the launcher counts nodes by them (launcher/scheduler), and
// the engine ranks (worker/startup/init_method). Names alone; the readers know what they mean.
// Constant; any thread.
#pragma once

#include <string_view>

namespace ddprun::scheduler_variables {

// Empty: this one has no such variable.
struct Names {
  // Processes: this one's number and how many there are, in the job and on this host.
  std::string_view rank{};
  std::string_view ranks{};
  std::string_view local_rank{};
  std::string_view local_ranks{};
  // Hosts: this one's number or name, how many there are, and all their names. The value of `hosts`
  // may also be the path of a file with a line for each slot.
  std::string_view node{};
  std::string_view nodes{};
  std::string_view hosts{};
  std::string_view tasks{};  // a list: the number of processes on each host
  // The number or name of the job. A job may have several steps at the same time.
  std::string_view job{};
  std::string_view step{};
  std::string_view end_time{};
};

// Sources: Open MPI 4.1 mpirun(1); HPE PALS mpiexec(1). MPICH 4.0's hydra, as it was seen to set
// them. Slurm 22.05 srun(1), sbatch(1), and 23.02 for the end time. IBM Job Step Manager, jsrun(1),
// and LSF 10.1 "Environment variable reference". sagemaker-training-toolkit
// ENVIRONMENT_VARIABLES.md; Kubernetes "Indexed Job" and JobSet. PBS qsub(1B); Cobalt qsub(1).

// A PMIx server gives it to the processes that it starts, whoever asked for them.
inline constexpr std::string_view kPmixNamespace = "PMIX_NAMESPACE";

inline constexpr Names kOpenMpi{.rank = "OMPI_COMM_WORLD_RANK",
                                .ranks = "OMPI_COMM_WORLD_SIZE",
                                .local_rank = "OMPI_COMM_WORLD_LOCAL_RANK",
                                .local_ranks = "OMPI_COMM_WORLD_LOCAL_SIZE",
                                .job = kPmixNamespace};
inline constexpr Names kMpich{.rank = "PMI_RANK",
                              .ranks = "PMI_SIZE",
                              .local_rank = "MPI_LOCALRANKID",
                              .local_ranks = "MPI_LOCALNRANKS"};
inline constexpr Names kPals{.rank = "PALS_RANKID",
                             .ranks = kMpich.ranks,
                             .local_rank = "PALS_LOCAL_RANKID",
                             .local_ranks = "PALS_LOCAL_SIZE",
                             .job = "PALS_APID"};

inline constexpr Names kSlurmJob{.nodes = "SLURM_JOB_NUM_NODES",
                                 .hosts = "SLURM_JOB_NODELIST",
                                 .job = "SLURM_JOB_ID",
                                 .end_time = "SLURM_JOB_END_TIME"};
inline constexpr Names kSlurmStep{.rank = "SLURM_PROCID",
                                  .ranks = "SLURM_STEP_NUM_TASKS",
                                  .local_rank = "SLURM_LOCALID",
                                  .node = "SLURM_NODEID",
                                  .nodes = "SLURM_STEP_NUM_NODES",
                                  .hosts = "SLURM_STEP_NODELIST",
                                  .tasks = "SLURM_STEP_TASKS_PER_NODE",
                                  .job = kSlurmJob.job,
                                  .step = "SLURM_STEP_ID"};
// Any process of a Slurm job may have these.
inline constexpr std::string_view kSlurmCluster = "SLURM_CLUSTER_NAME";
inline constexpr std::string_view kSlurmCpusPerTask = "SLURM_CPUS_PER_TASK";
inline constexpr std::string_view kSlurmTasks = "SLURM_NTASKS";
inline constexpr std::string_view kSlurmTasksPerNode = "SLURM_TASKS_PER_NODE";
inline constexpr std::string_view kSlurmTaskPid = "SLURM_TASK_PID";
inline constexpr std::string_view kSlurmPtyPort = "SLURM_PTY_PORT";
// A heterogeneous job has components. Each has a job and nodes of its own: component N's variables
// are kSlurmJob's with _HET_GROUP_N behind the name.
inline constexpr std::string_view kSlurmComponents = "SLURM_HET_SIZE";
inline constexpr std::string_view kSlurmComponentsJob = "SLURM_HET_JOB_ID";

inline constexpr Names kLsf{.hosts = "LSB_DJOB_HOSTFILE", .job = "LSB_JOBID"};
inline constexpr Names kJsrun{.rank = "JSM_NAMESPACE_RANK",
                              .ranks = "JSM_NAMESPACE_SIZE",
                              .local_rank = "JSM_NAMESPACE_LOCAL_RANK",
                              .local_ranks = "JSM_NAMESPACE_LOCAL_SIZE",
                              .job = kLsf.job,
                              .step = kPmixNamespace};
inline constexpr Names kPbs{.hosts = "PBS_NODEFILE", .job = "PBS_JOBID"};
inline constexpr Names kCobalt{.hosts = "COBALT_NODEFILE", .job = "COBALT_JOBID"};

inline constexpr Names kSageMaker{
    .node = "SM_CURRENT_HOST", .hosts = "SM_HOSTS", .job = "TRAINING_JOB_NAME"};
inline constexpr Names kIndexedJob{.node = "JOB_COMPLETION_INDEX"};
// Each container of a pod has it.
inline constexpr std::string_view kKubernetesService = "KUBERNETES_SERVICE_HOST";

}  // namespace ddprun::scheduler_variables
