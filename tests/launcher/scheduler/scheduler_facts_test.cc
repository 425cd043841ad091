#include "launcher/scheduler/scheduler_facts.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <set>

#include "launcher/scheduler/placement.h"
#include "launcher/scheduler/start_mark.h"
#include "tests/launcher/scheduler/recorded.h"

namespace ddprun::launcher {
namespace {

// Names the scheduler, then what is known: `rank/nodes first-host id tasks`.
std::string summary(const SchedulerFacts& found) {
  if (found.scheduler == Scheduler::kNone) return "none";
  return fmt::format("{}: {}/{} {} {} {}{}", row_of(found.scheduler).name, found.node_rank,
                     found.nodes, found.first_host.empty() ? "?" : found.first_host,
                     found.id.empty() ? "?" : found.id, found.most_tasks,
                     found.problem.empty() ? "" : " " + found.problem);
}

TEST(SchedulerFacts, AreReadFromRecordedEnvironments) {
  const std::map<std::string, std::string> expected = {
      {"slurm_step", "Slurm step: 1/2 node01 slurm-1.0 1"},
      {"slurm_step_of_four_tasks", "Slurm step: 0/2 node01 slurm-2.0 3"},
      {"slurm_step_with_unequal_nodes", "Slurm step: 2/3 node01 slurm-3.0 2"},
      {"slurm_step_with_pmi2", "Slurm step: 1/2 node01 slurm-10.0 1"},
      {"slurm_batch_script", "Slurm job: 0/2 ? ? 1"},
      {"slurm_step_on_one_of_two_nodes", "Slurm step: 0/1 node01 slurm-4.0 1"},
      {"slurm_allocation", "Slurm job: 0/2 ? ? 1"},
      {"slurm_interactive_step", "Slurm job: 0/2 ? ? 1"},
      {"open_mpi_in_slurm", "Open MPI: 1/2 node01 mpi-91881473 1"},
      {"open_mpi_on_one_host", "Open MPI: 0/2 ? mpi-106758145 2"},
      {"mpich_in_slurm", "MPICH: 1/2 node01 mpi-8 1"},
      {"mpich_on_one_host", "MPICH: 0/2 ? mpi- 2"},
      {"sagemaker", "SageMaker: 1/2 algo-1 sagemaker-digits-2026-11-24-10-00-00-000 1"},
      {"jsrun", "jsrun: 2/4 h41n01 mpi-714301 1"},
      {"lsf_job", "LSF job: 0/5 ? ? 1"},
      {"pbs_job", "PBS job: 0/2 ? ? 1"},
      {"cobalt_job", "Cobalt job: 0/2 ? ? 1"},
      {"pals", "PALS: 1/2 x1000c0s0b0n0 mpi-4e3a1c77-5f34-45f8-9c23-5b2c6f2d1f0e 1"},
      {"indexed_job", "indexed Job: 3/0 digits-0.digits.default.svc.cluster.local job-digits 1"},
      {"pytorchjob", "environment: 1/2 digits-master-0 ? 1"},
      {"pai_dlc", "environment: 1/2 dlc-master-0 ? 1"},
      {"vertex_pytorch", "environment: 1/2 cmle-training-workerpool0-ab-0 ? 1"},
      {"trainer_2", "indexed Job: 1/0 ? ? 1"},
      {"skypilot",
       "SkyPilot task: 1/2 10.0.0.1 skypilot-sky-2026-11-27-10-00-00-000000_digits_1 1"},
      {"dstack", "dstack run: 1/2 10.0.0.1 dstack-5f1c2a44-9d0e-4a4b-8f0a-1f6e7d8c9b0a 1"},
      {"runpod", "RunPod cluster: 1/2 10.65.0.2 runpod-10.65.0.2 1"},
      {"azure_ml", "Azure ML job: 1/2 10.0.0.4 azureml-patient_lamp_8d1f 1"},
      {"lepton", "Lepton job: 1/2 digits-0.digits-job-svc lepton-digits 1"},
      {"beaker", "Beaker task: 1/2 node01.example.org beaker-01JB4C6W 1"},
      {"vertex", "Vertex job: 1/2 cmle-training-workerpool0-ab-0 vertex-5912871034 1"},
      {"mind_cluster", "MindCluster job: 1/2 10.0.0.1 mindcluster-10.0.0.1 1"},
      {"condor", "HTCondor job: 1/2 ? htcondor- 1"},
      {"volcano", "Volcano job: 1/2 digits-worker-0.digits volcano-digits-worker-0.digits 1"},
      {"volcano_of_two_tasks",
       "Volcano job: 0/2 ? volcano- 1 this Volcano job has 2 tasks with 2 pods, and nothing says "
       "which is the first: type --nnodes=2 --rdzv-backend=c10d --rdzv-id=NAME "
       "--rdzv-endpoint=digits-master-0.digits, or --standalone for a job on this pod alone"},
      {"flux", "Flux job: 1/2 node01 flux-f2XzA1 1"},
      {"flux_of_four_tasks", "Flux job: 0/2 ? flux-f2XzA2 4"},
      {"flux_allocation", "Flux allocation: 0/2 ? ? 1"},
      {"lsf_without_file", "LSF job: 0/2 ? ? 1"},
      {"grid_engine", "Grid Engine job: 0/2 ? ? 1"},
  };
  std::map<std::string, std::string> found;
  for (const auto& entry : std::filesystem::directory_iterator(kFolder)) {
    if (entry.path().extension() != ".env") continue;
    const std::string name = entry.path().stem().string();
    EXPECT_TRUE(text_of(name + ".env")->starts_with("# Source: ")) << name;
    found[name] = summary(detect(recorded(name)));
  }
  EXPECT_EQ(found, expected);
  EXPECT_GE(found.size(), 12U);
}

TEST(SchedulerFacts, AreNoneOnAPlainHost) {
  EXPECT_EQ(summary(detect({{"PATH", "/bin"}, {"HOSTNAME", "a"}})), "none");
  EXPECT_EQ(summary(detect({{"MASTER_ADDR", "a"}, {"RANK", "0"}, {"WORLD_SIZE", "1"}})), "none");
  EXPECT_EQ(summary(detect({{"MASTER_ADDR", "a"}})), "none");
}

TEST(SchedulerFacts, AreNoneInAWorker) {
  // A worker of torchrun, and one of a ddprun in the same step.
  Variables variables = recorded("slurm_step");
  variables["TORCHELASTIC_RUN_ID"] = "x";
  EXPECT_EQ(summary(detect(variables)), "none");
  variables["DDPRUN_JOB"] = "x";
  variables["DDPRUN_STARTED_IN"] = start_mark(environment(variables));
  EXPECT_EQ(summary(detect(variables)), "none");
}

// The variables of a program that a worker of this job starts.
Variables inside(const std::string& name) {
  Variables variables = recorded(name);
  variables["DDPRUN_JOB"] = "x";
  variables["TORCHELASTIC_RUN_ID"] = "x";
  const std::string mark = start_mark(environment(recorded(name)));
  if (!mark.empty()) variables["DDPRUN_STARTED_IN"] = mark;
  return variables;
}

TEST(SchedulerFacts, AreThoseOfAJobThatAWorkerSubmits) {
  for (const char* name : {"slurm_step", "slurm_batch_script", "open_mpi_in_slurm", "pbs_job"})
    EXPECT_EQ(summary(detect(inside(name))), "none") << name;
  Variables submitted = inside("slurm_step");
  submitted["SLURM_JOB_ID"] = "77";
  submitted["SLURM_TASK_PID"] = "4242";
  SchedulerInputs batch = facts();
  batch.slurm_step_above = [] { return "77.batch"; };
  EXPECT_EQ(summary(detect(submitted, batch)), "Slurm job: 0/2 ? ? 1");
  // The step that the batch script starts has the same number as the worker's.
  batch.slurm_step_above = [] { return "77.0"; };
  EXPECT_EQ(summary(detect(submitted, batch)), "Slurm step: 1/2 node01 slurm-77.0 1");
  // A worker on a login node has no mark.
  submitted.erase("DDPRUN_STARTED_IN");
  EXPECT_EQ(summary(detect(submitted, batch)), "Slurm step: 1/2 node01 slurm-77.0 1");
  // mpirun in a worker of a step.
  Variables mpi = inside("slurm_step");
  for (const auto& [variable, value] : recorded("open_mpi_in_slurm")) mpi[variable] = value;
  EXPECT_TRUE(summary(detect(mpi)).starts_with("Open MPI: 1/2 ")) << summary(detect(mpi));
  // A worker of mpirun submits: the old variables of Open MPI are still there.
  Variables old = inside("open_mpi_in_slurm");
  old["SLURM_JOB_ID"] = "77";
  EXPECT_TRUE(summary(detect(old)).starts_with("Slurm step: ")) << summary(detect(old));
}

TEST(SchedulerFacts, SeeABatchScriptBehindTheVariablesOfAnOldStep) {
  SchedulerInputs all = facts();
  for (const char* above : {"9.batch", "9.interactive", "9.extern"}) {
    all.slurm_step_above = [above] { return above; };
    EXPECT_EQ(summary(detect(recorded("slurm_step"), all)), "Slurm job: 0/2 ? ? 1") << above;
  }
  for (const char* above : {"", "9.0", "9+1.0"}) {
    all.slurm_step_above = [above] { return above; };
    EXPECT_TRUE(summary(detect(recorded("slurm_step"), all)).starts_with("Slurm step: ")) << above;
  }
}

TEST(SchedulerFacts, TakeTheShellOfAnInteractiveStepForAnAllocation) {
  Variables step = recorded("slurm_step");
  SchedulerInputs typed = facts();
  typed.is_typed_at_terminal = [] { return true; };
  // It counts in a step with a terminal only: others have terminals that Slurm knows nothing of.
  EXPECT_TRUE(summary(detect(step, typed)).starts_with("Slurm step: "));
  step["SLURM_PTY_PORT"] = "40917";
  EXPECT_EQ(summary(detect(step, typed)), "Slurm job: 0/2 ? ? 1");
  const auto placed = place(detect(step, typed), {.called = "ddprun"});
  ASSERT_FALSE(placed);
  EXPECT_EQ(placed.error().message(),
            "this Slurm job has 2 nodes, and ddprun runs on one of them: type `srun --overlap "
            "--ntasks-per-node=1 --nodes=2 ddprun …`, or --standalone for a job on this node "
            "alone");
  step["SLURM_JOB_NUM_NODES"] = "1";
  EXPECT_EQ(place(detect(step, typed), {.called = "ddprun"}).value(), std::nullopt);
  typed.is_typed_at_terminal = [] { return false; };
  EXPECT_TRUE(summary(detect(step, typed)).starts_with("Slurm step: "));
}

TEST(SchedulerFacts, SayWhatMakesNoSense) {
  Variables step = recorded("slurm_step");
  step["SLURM_STEP_NODELIST"] = "node[01-03]";
  EXPECT_EQ(detect(step).problem, "SLURM_STEP_NODELIST=node[01-03]: expected 2 hosts");
  step["SLURM_STEP_NODELIST"] = "node[01";
  EXPECT_EQ(detect(step).problem,
            "SLURM_STEP_NODELIST=node[01: expected node[01 in the host list: a [ without a ]");
  step = recorded("slurm_step");
  step["SLURM_NODEID"] = "2";
  EXPECT_EQ(detect(step).problem, "SLURM_NODEID=2: expected a number below SLURM_STEP_NUM_NODES=2");
  step["SLURM_STEP_NUM_NODES"] = "x";
  EXPECT_EQ(detect(step).problem, "SLURM_STEP_NUM_NODES=x: expected a number above 0");
  Variables sagemaker = recorded("sagemaker");
  sagemaker["SM_CURRENT_HOST"] = "algo-3";
  EXPECT_EQ(detect(sagemaker).problem,
            "SM_CURRENT_HOST=algo-3: expected one of [\"algo-1\",\"algo-2\"]");
  sagemaker["SM_HOSTS"] = "algo-1";
  EXPECT_EQ(detect(sagemaker).problem, "SM_HOSTS=algo-1: expected a JSON list of hosts");
}

TEST(SchedulerFacts, TakeTheHostThatTheUserNamesToMpi) {
  Variables variables = recorded("open_mpi_in_slurm");
  variables["MASTER_ADDR"] = "node09";
  EXPECT_EQ(detect(variables).first_host, "node09");
}

// The host of the script is first in the list, and jsrun may start fewer than the job has.
TEST(SchedulerFacts, TellApartTwoJsrunsOfOneAllocation) {
  Variables variables = recorded("jsrun");
  variables["JSM_NAMESPACE_SIZE"] = "2";
  variables["JSM_NAMESPACE_RANK"] = "1";
  EXPECT_EQ(detect(variables).first_host, "h41n01");
  variables["PMIX_NAMESPACE"] = "1";
  const SchedulerFacts first = detect(variables);
  EXPECT_EQ(first.id, "mpi-714301.1");
  variables["PMIX_NAMESPACE"] = "2";
  EXPECT_EQ(detect(variables).id, "mpi-714301.2");
  EXPECT_NE(detect(variables).first_port, first.first_port);
}

TEST(SchedulerFacts, NameNoPodWithoutADomain) {
  EXPECT_EQ(detect(recorded("indexed_job"), facts("digits-3")).first_host, "");
  EXPECT_EQ(detect(recorded("indexed_job"), facts("other")).first_host, "");
  Variables first = recorded("indexed_job");
  first["JOB_COMPLETION_INDEX"] = "0";
  EXPECT_EQ(detect(first, facts("digits-0")).first_host, "digits-0");
}

TEST(SchedulerFacts, KnowCpusAndTheEnd) {
  Variables step = recorded("slurm_step");
  EXPECT_EQ(detect(step).cpus_per_task, 4);
  EXPECT_EQ(detect(step).ends_at, std::nullopt);
  step["SLURM_JOB_END_TIME"] = "1795560000";
  EXPECT_EQ(detect(step).ends_at->time_since_epoch().count(), 1795560000);
  EXPECT_EQ(detect(recorded("slurm_step_on_one_of_two_nodes")).job_nodes, 2);
}

// A batch script has the processors of all tasks of its node. Only one that is alone has those of
// one task.
TEST(SchedulerFacts, KnowTheCpusOfABatchScriptWithOneTask) {
  Variables batch = recorded("slurm_batch_script");
  batch["SLURM_CPUS_PER_TASK"] = "6";
  EXPECT_EQ(detect(batch).cpus_per_task, 6);
  batch["SLURM_TASKS_PER_NODE"] = "2(x2)";
  EXPECT_EQ(detect(batch).cpus_per_task, 0);
  batch.erase("SLURM_TASKS_PER_NODE");
  EXPECT_EQ(detect(batch).cpus_per_task, 0);
  batch["SLURM_NTASKS"] = "1";
  EXPECT_EQ(detect(batch).cpus_per_task, 6);
}

// Jobs that follow each other, and the steps of one, have blocks of their own.
TEST(SchedulerFacts, GiveEachJobPortsOfItsOwn) {
  std::set<int> blocks;
  Variables step = recorded("slurm_step");
  for (int job = 100; job < 110; ++job) {
    for (int number = 0; number < 10; ++number) {
      step["SLURM_JOB_ID"] = std::to_string(job);
      step["SLURM_STEP_ID"] = std::to_string(number);
      const int port = detect(step).first_port;
      EXPECT_GE(port, kFirstJobPort);
      EXPECT_LE(port + kJobPorts, kEndOfJobPorts);
      EXPECT_EQ((port - kFirstJobPort) % kJobPorts, 0);
      blocks.insert(port);
    }
  }
  EXPECT_EQ(blocks.size(), 100U);
}

// docs/schedulers.md has the table with the same rows, in the same order.
TEST(SchedulerFacts, AreShownInTheDocs) {
  std::istringstream page(text_of("../../../docs/schedulers.md").value());
  std::vector<std::string> rows;
  for (std::string line; std::getline(page, line) && line != "## What is refused";) {
    if (line.starts_with("| ") && !line.starts_with("| who ")) rows.push_back(line);
  }
  ASSERT_EQ(rows.size(), scheduler_table().size());
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const SchedulerRow& row = scheduler_table()[i];
    EXPECT_TRUE(rows[i].starts_with(fmt::format("| {} | `{}` |", row.name, row.sign))) << rows[i];
    for (const auto name : {row.nodes, row.rank, row.hosts, row.job, row.step, row.tasks}) {
      const std::string shown = name.empty() ? "|" : fmt::format("`{}`", name);
      EXPECT_NE(rows[i].find(shown), std::string::npos) << shown << rows[i];
    }
  }
}

}  // namespace
}  // namespace ddprun::launcher
