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
  std::string_view gpus{};  // the number of GPUs, or workers, of this host
};

// Sources: Open MPI 4.1 mpirun(1); HPE PALS mpiexec(1). MPICH 4.0's hydra, as it was seen to set
// them. Slurm 22.05 srun(1), sbatch(1), and 23.02 for the end time. IBM Job Step Manager, jsrun(1),
// and LSF 10.1 "Environment variable reference". sagemaker-training-toolkit
// ENVIRONMENT_VARIABLES.md; Kubernetes "Indexed Job" and JobSet. PBS qsub(1B); Cobalt qsub(1).
// Those of platforms are named beside them.

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

// LSF gives the same list without a file: "h0 8 h1 8".
inline constexpr std::string_view kLsfHostsAndSlots = "LSB_MCPU_HOSTS";
// Grid Engine, qsub(1) and sge_pe(5). The file has a line for each host.
inline constexpr Names kGridEngine{.hosts = "PE_HOSTFILE"};

inline constexpr Names kSageMaker{.node = "SM_CURRENT_HOST",
                                  .hosts = "SM_HOSTS",
                                  .job = "TRAINING_JOB_NAME",
                                  .gpus = "SM_NUM_GPUS"};
// Flux, flux-run(1) and flux-hostlist(1). The URI is that of the instance that a process is in.
inline constexpr Names kFlux{.rank = "FLUX_TASK_RANK",
                             .ranks = "FLUX_JOB_SIZE",
                             .nodes = "FLUX_JOB_NNODES",
                             .job = "FLUX_JOB_ID"};
inline constexpr std::string_view kFluxUri = "FLUX_URI";
// docs.skypilot.co, "Distributed multi-node jobs". The hosts are lines.
inline constexpr Names kSkyPilot{.node = "SKYPILOT_NODE_RANK",
                                 .nodes = "SKYPILOT_NUM_NODES",
                                 .hosts = "SKYPILOT_NODE_IPS",
                                 .job = "SKYPILOT_TASK_ID",
                                 .gpus = "SKYPILOT_NUM_GPUS_PER_NODE"};
// dstack's runner, executor.go.
inline constexpr Names kDstack{.node = "DSTACK_NODE_RANK",
                               .nodes = "DSTACK_NODES_NUM",
                               .hosts = "DSTACK_MASTER_NODE_IP",
                               .job = "DSTACK_RUN_ID",
                               .gpus = "DSTACK_GPUS_PER_NODE"};
// docs.runpod.io, "Instant Clusters". The rank's name is one of many.
inline constexpr Names kRunPod{
    .nodes = "NUM_NODES", .hosts = "PRIMARY_ADDR", .gpus = "NUM_TRAINERS"};
// Azure ML, "Distributed GPU training guide".
inline constexpr Names kAzureMl{.nodes = "AZUREML_NODE_COUNT", .job = "AZUREML_RUN_ID"};
// NVIDIA DGX Cloud Lepton, the start script of its multi-node jobs.
inline constexpr Names kLepton{.node = "LEPTON_JOB_WORKER_INDEX",
                               .nodes = "LEPTON_JOB_TOTAL_WORKERS",
                               .job = "LEPTON_JOB_NAME",
                               .gpus = "LEPTON_RESOURCE_ACCELERATOR_NUM"};
inline constexpr std::string_view kLeptonPrefix = "LEPTON_JOB_SERVICE_PREFIX";
inline constexpr std::string_view kLeptonSubdomain = "LEPTON_SUBDOMAIN";
// Beaker, as beaker-gantry documents them.
inline constexpr Names kBeaker{.node = "BEAKER_REPLICA_RANK",
                               .nodes = "BEAKER_REPLICA_COUNT",
                               .hosts = "BEAKER_LEADER_REPLICA_HOSTNAME",
                               .job = "BEAKER_WORKLOAD_ID"};
// Vertex AI, "Distributed training": JSON.
inline constexpr Names kVertex{.hosts = "CLUSTER_SPEC", .job = "CLOUD_ML_JOB_ID"};
// HTCondor's parallel universe, parallelproc.cpp.
inline constexpr Names kCondor{.node = "_CONDOR_PROCNO", .nodes = "_CONDOR_NPROCS"};
// Volcano's plugin `env`. The plugin `svc` adds VC_TASK_HOSTS and VC_TASK_NUM for each task, with
// the task's own name.
inline constexpr Names kVolcano{.node = "VC_TASK_INDEX"};
inline constexpr Names kIndexedJob{.node = "JOB_COMPLETION_INDEX"};
// Each container of a pod has it.
inline constexpr std::string_view kKubernetesService = "KUBERNETES_SERVICE_HOST";

}  // namespace ddprun::scheduler_variables
