#include "launcher/surroundings/surroundings.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "launcher/surroundings/placement.h"
#include "launcher/surroundings/started_in.h"
#include "tests/launcher/parse_support.h"

namespace ddprun::launcher {
namespace {

const std::string kFolder = DDPRUN_SURROUNDINGS;

std::optional<std::string> text_of(const std::string& name) {
  std::ifstream file(kFolder + "/" + name);
  if (!file) return std::nullopt;
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

// A recorded environment. Its first line names its source.
Variables recorded(const std::string& name) {
  std::istringstream lines(text_of(name + ".env").value());
  Variables variables;
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with('#'))
      variables[line.substr(0, line.find('='))] = line.substr(line.find('=') + 1);
  }
  return variables;
}

SurroundingsFacts facts(std::string host_name = "digits-3.digits.default.svc.cluster.local") {
  return {.read_file = text_of, .full_host_name = [host_name] { return host_name; }};
}

Surroundings detect(const Variables& variables, const SurroundingsFacts& all = facts()) {
  return detect_surroundings(environment(variables), all);
}

// Who, then what is known: `rank/nodes first-host id tasks`.
std::string summary(const Surroundings& found) {
  if (found.scheduler == Scheduler::kNone) return "none";
  return fmt::format("{}: {}/{} {} {} {}{}", row_of(found.scheduler).name, found.node_rank,
                     found.nodes, found.first_host.empty() ? "?" : found.first_host,
                     found.id.empty() ? "?" : found.id, found.most_tasks,
                     found.problem.empty() ? "" : " " + found.problem);
}

TEST(Surroundings, AreReadFromRecordedEnvironments) {
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
      {"pbs_job", "PBS job: 0/2 ? ? 1"},
      {"cobalt_job", "Cobalt job: 0/2 ? ? 1"},
      {"pals", "PALS: 1/2 x1000c0s0b0n0 mpi-4e3a1c77-5f34-45f8-9c23-5b2c6f2d1f0e 1"},
      {"indexed_job", "indexed Job: 3/0 digits-0.digits.default.svc.cluster.local job-digits 1"},
      {"pytorchjob", "environment: 1/2 digits-master-0 ? 1"},
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

TEST(Surroundings, AreNoneOnAPlainHost) {
  EXPECT_EQ(summary(detect({{"PATH", "/bin"}, {"HOSTNAME", "a"}})), "none");
  EXPECT_EQ(summary(detect({{"MASTER_ADDR", "a"}, {"RANK", "0"}, {"WORLD_SIZE", "1"}})), "none");
  EXPECT_EQ(summary(detect({{"MASTER_ADDR", "a"}})), "none");
}

TEST(Surroundings, AreNoneInAWorker) {
  // Of torchrun, and of a ddprun in the same step.
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

TEST(Surroundings, AreThoseOfAJobThatAWorkerSubmits) {
  for (const char* name : {"slurm_step", "slurm_batch_script", "open_mpi_in_slurm", "pbs_job"})
    EXPECT_EQ(summary(detect(inside(name))), "none") << name;
  Variables submitted = inside("slurm_step");
  submitted["SLURM_JOB_ID"] = "77";
  submitted["SLURM_TASK_PID"] = "4242";
  SurroundingsFacts batch = facts();
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

TEST(Surroundings, SeeABatchScriptBehindTheVariablesOfAnOldStep) {
  SurroundingsFacts all = facts();
  for (const char* above : {"9.batch", "9.interactive", "9.extern"}) {
    all.slurm_step_above = [above] { return above; };
    EXPECT_EQ(summary(detect(recorded("slurm_step"), all)), "Slurm job: 0/2 ? ? 1") << above;
  }
  for (const char* above : {"", "9.0", "9+1.0"}) {
    all.slurm_step_above = [above] { return above; };
    EXPECT_TRUE(summary(detect(recorded("slurm_step"), all)).starts_with("Slurm step: ")) << above;
  }
}

TEST(Surroundings, TakeTheShellOfAnInteractiveStepForAnAllocation) {
  Variables step = recorded("slurm_step");
  SurroundingsFacts typed = facts();
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

TEST(Surroundings, SayWhatMakesNoSense) {
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

TEST(Surroundings, TakeTheHostThatTheUserNamesToMpi) {
  Variables variables = recorded("open_mpi_in_slurm");
  variables["MASTER_ADDR"] = "node09";
  EXPECT_EQ(detect(variables).first_host, "node09");
}

TEST(Surroundings, NameNoPodWithoutADomain) {
  EXPECT_EQ(detect(recorded("indexed_job"), facts("digits-3")).first_host, "");
  EXPECT_EQ(detect(recorded("indexed_job"), facts("other")).first_host, "");
  Variables first = recorded("indexed_job");
  first["JOB_COMPLETION_INDEX"] = "0";
  EXPECT_EQ(detect(first, facts("digits-0")).first_host, "digits-0");
}

TEST(Surroundings, KnowCpusAndTheEnd) {
  Variables step = recorded("slurm_step");
  EXPECT_EQ(detect(step).cpus_per_task, 4);
  EXPECT_EQ(detect(step).ends_at, std::nullopt);
  step["SLURM_JOB_END_TIME"] = "1795560000";
  EXPECT_EQ(detect(step).ends_at->time_since_epoch().count(), 1795560000);
  EXPECT_EQ(detect(recorded("slurm_step_on_one_of_two_nodes")).job_nodes, 2);
}

// Jobs that follow each other, and the steps of one, have blocks of their own.
TEST(Surroundings, GiveEachJobPortsOfItsOwn) {
  std::set<int> blocks;
  Variables step = recorded("slurm_step");
  for (int job = 100; job < 110; ++job) {
    for (int number = 0; number < 10; ++number) {
      step["SLURM_JOB_ID"] = std::to_string(job);
      step["SLURM_STEP_ID"] = std::to_string(number);
      const int port = detect(step).first_port;
      EXPECT_GE(port, kFirstMeetingPort);
      EXPECT_LE(port + kMeetingPorts, kEndOfMeetingPorts);
      EXPECT_EQ((port - kFirstMeetingPort) % kMeetingPorts, 0);
      blocks.insert(port);
    }
  }
  EXPECT_EQ(blocks.size(), 100U);
}

// docs/schedulers.md has the table with the same rows, in the same order.
TEST(Surroundings, AreShownInTheDocs) {
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

// ---- what the command line becomes ----

// What Slurm's programs print.
std::optional<std::string> answer(const std::vector<std::string>& words) {
  if (words.at(0) == "scontrol")
    return "Configuration data\nKeepAliveTime           = SYSTEM_DEFAULT\nKillWait                = 60 sec\n";
  return "1 1795560000\n";
}

Parsed parse_in(const std::string& name, const std::vector<std::string>& args,
                const Variables& more = {}) {
  Variables variables = recorded(name);
  for (const auto& [key, value] : more) variables[key] = value;
  HostFacts host{[] { return 8; }, [] { return 0; }, [] { return std::string("a-fresh-id"); }};
  host.allowed_cpu_count = [] { return 3; };
  host.surroundings = facts();
  host.ask = answer;
  return parse(args, environment(variables), host);
}

Options good_in(const std::string& name, const std::vector<std::string>& args,
                const Variables& more = {}) {
  const Parsed parsed = parse_in(name, args, more);
  if (const auto* error = std::get_if<UsageError>(&parsed))
    throw std::runtime_error(error->message);
  return std::get<Options>(parsed);
}

std::string bad_in(const std::string& name, const std::vector<std::string>& args,
                   const Variables& more = {}) {
  const Parsed parsed = parse_in(name, args, more);
  const auto* error = std::get_if<UsageError>(&parsed);
  return error == nullptr ? "accepted" : fmt::format("{} {}", error->exit_code, error->message);
}

TEST(Placement, NeedsNoFlagInASlurmStep) {
  const Options options = good_in("slurm_step", {"--nproc-per-node=2", "E"});
  EXPECT_EQ(options.rendezvous, Rendezvous::kC10d);
  EXPECT_EQ(options.nodes, (NodeCount{2, 2}));
  EXPECT_EQ(options.node_rank, 1);
  EXPECT_EQ(options.endpoint.host, "node01");
  EXPECT_EQ(options.endpoint.port, 15000 + 37 * 8);
  EXPECT_EQ(options.port_count, kMeetingPorts);
  EXPECT_EQ(options.run_id, "slurm-1.0");
  EXPECT_EQ(options.rendezvous_conf.is_host, false);
  EXPECT_TRUE(options.notices.empty() && options.warnings.empty());
}

TEST(Placement, IsSaidOnceOnTheFirstNode) {
  const Options options = good_in("slurm_step", {"E"}, {{"SLURM_NODEID", "0"}});
  EXPECT_EQ(options.rendezvous_conf.is_host, true);
  EXPECT_EQ(options.notices,
            std::vector<std::string>{"Slurm step slurm-1.0: 2 nodes, meeting at node01:15296"});
}

TEST(Placement, CompletesTheNumberOfNodes) {
  EXPECT_EQ(good_in("slurm_step", {"--nnodes=2", "E"}).run_id, "slurm-1.0");
  EXPECT_EQ(good_in("slurm_step", {"--nnodes=1:4", "E"}).nodes, (NodeCount{1, 4}));
  EXPECT_EQ(good_in("slurm_step", {"E"}, {{"PET_NNODES", "2"}}).run_id, "slurm-1.0");
  EXPECT_EQ(good_in("indexed_job", {"--nnodes=4", "E"}).endpoint.host,
            "digits-0.digits.default.svc.cluster.local");
  const Options conf = good_in("slurm_step", {"--rdzv-conf=join_timeout=7", "E"});
  EXPECT_EQ(conf.rendezvous_conf.join_timeout.count(), 7);
  EXPECT_EQ(conf.rendezvous_conf.is_host, false);
}

TEST(Placement, LeavesWhatTheUserSays) {
  for (const std::vector<std::string>& words : {std::vector<std::string>{"--standalone", "E"},
                                                {"--nnodes=1", "E"},
                                                {"--nnodes=1:1", "E"}}) {
    for (const char* name : {"slurm_step", "slurm_batch_script", "slurm_step_of_four_tasks",
                             "open_mpi_on_one_host", "pytorchjob", "pbs_job"}) {
      const Options options = good_in(name, words);
      EXPECT_EQ(options.rendezvous, Rendezvous::kLocal) << name;
      EXPECT_TRUE(options.notices.empty()) << name;
    }
  }
  const Options options =
      good_in("slurm_step", {"--nnodes=2", "--node-rank=1", "--master-addr=10.0.0.1", "E"});
  EXPECT_EQ(options.rendezvous, Rendezvous::kStatic);
  EXPECT_EQ(options.port_count, 1);
  EXPECT_EQ(good_in("slurm_batch_script", {"E"}, {{"PET_RDZV_ID", "x"}}).run_id, "x");
  EXPECT_EQ(good_in("indexed_job", {"E"}).rendezvous, Rendezvous::kLocal);
}

TEST(Placement, RefusesAJobOfSeveralNodesOnOne) {
  EXPECT_EQ(
      bad_in("slurm_batch_script", {"E"}),
      "2 this Slurm job has 2 nodes, and ddprun runs on one of them: type `srun "
      "--ntasks-per-node=1 --nodes=2 ddprun …`, or --standalone for a job on this node alone");
  EXPECT_EQ(bad_in("slurm_batch_script", {"--nnodes=2", "E"}), bad_in("slurm_batch_script", {"E"}));
  EXPECT_EQ(bad_in("slurm_interactive_step", {"E"}), bad_in("slurm_batch_script", {"E"}));
  EXPECT_EQ(bad_in("slurm_allocation", {"E"}), bad_in("slurm_batch_script", {"E"}));
  EXPECT_EQ(
      bad_in("slurm_step_on_one_of_two_nodes", {"E"}),
      "2 this Slurm step is of a job with 2 nodes, and ddprun runs on one of them: type `srun "
      "--ntasks-per-node=1 --nodes=2 ddprun …`, or --standalone for a job on this node alone");
  EXPECT_TRUE(
      bad_in("pbs_job", {"E"})
          .starts_with(
              "2 this PBS job has 2 nodes, and ddprun runs on one of them: type `mpiexec -n 2 --ppn 1 "));
  EXPECT_TRUE(bad_in("cobalt_job", {"E"}).starts_with("2 this Cobalt job has 2 nodes"));
}

TEST(Placement, RefusesSeveralLaunchersOnANode) {
  EXPECT_EQ(
      bad_in("slurm_step_of_four_tasks", {"E"}),
      "2 Slurm step starts 3 ddpruns on one node: type `srun --ntasks-per-node=1 --nodes=2 "
      "ddprun …`; --nproc-per-node=N starts N workers on each, and --standalone means jobs of "
      "their own");
  // All of the step's nodes say it, also those with one task.
  EXPECT_TRUE(bad_in("slurm_step_with_unequal_nodes", {"E"}).starts_with("2 Slurm step starts 2 "));
  EXPECT_TRUE(bad_in("open_mpi_on_one_host", {"E"}).starts_with("2 Open MPI starts 2 ddpruns on "));
  EXPECT_TRUE(bad_in("mpich_on_one_host", {"E"}).starts_with("2 MPICH starts 2 ddpruns on one "));
}

TEST(Placement, RefusesAnotherNumberOfNodes) {
  EXPECT_EQ(bad_in("slurm_step", {"--nnodes=3", "E"}),
            "2 --nnodes=3: this Slurm step has 2 nodes: type `srun --ntasks-per-node=1 --nodes=3 "
            "ddprun …`, or leave --nnodes out; --nnodes=1 means a job on each node alone");
  EXPECT_TRUE(bad_in("slurm_step", {"--nnodes=3:4", "E"}).starts_with("2 --nnodes=3:4: "));
  EXPECT_TRUE(bad_in("slurm_step", {"E"}, {{"PET_NNODES", "3"}}).starts_with("2 PET_NNODES=3: "));
  EXPECT_TRUE(bad_in("indexed_job", {"--nnodes=2", "E"})
                  .starts_with("2 --nnodes=2: this pod is JOB_COMPLETION_INDEX=3: "));
}

TEST(Placement, RefusesWhatAnOperatorSays) {
  EXPECT_EQ(
      bad_in("pytorchjob", {"E"}),
      "2 WORLD_SIZE=2 and MASTER_ADDR=digits-master-0 are set, and ddprun takes nodes from its "
      "flags: type --nnodes=$WORLD_SIZE --node-rank=$RANK --master-addr=$MASTER_ADDR "
      "--master-port=$MASTER_PORT, or --standalone for a job on this node alone");
  EXPECT_EQ(
      good_in("pytorchjob", {"--nnodes=2", "--node-rank=1", "--master-addr=a", "E"}).node_rank, 1);
  EXPECT_EQ(good_in("pytorchjob", {"E"},
                    {{"PET_NNODES", "2"}, {"PET_NODE_RANK", "1"}, {"PET_MASTER_ADDR", "a"}})
                .node_rank,
            1);
}

TEST(Placement, AsksForTheFirstHostOfMpi) {
  const Variables two = {{"OMPI_COMM_WORLD_LOCAL_SIZE", "1"}};
  EXPECT_EQ(
      bad_in("open_mpi_on_one_host", {"E"}, two),
      "2 Open MPI runs ddprun on 2 nodes, and nothing names the first host: type -x "
      "MASTER_ADDR=HOST for the host of rank 0, or --standalone for a job on each node alone");
  EXPECT_EQ(good_in("open_mpi_on_one_host", {"E"},
                    {{"OMPI_COMM_WORLD_LOCAL_SIZE", "1"}, {"MASTER_ADDR", "h1"}})
                .endpoint.host,
            "h1");
}

TEST(Deadlines, LeaveTimeForTheReport) {
  EXPECT_EQ(good_in("slurm_step", {"E"}).shutdown_timeout.count(), 58);
  EXPECT_EQ(good_in("slurm_batch_script", {"--standalone", "E"}).shutdown_timeout.count(), 58);
  EXPECT_EQ(good_in("open_mpi_in_slurm", {"E"}).shutdown_timeout.count(), 58);
  EXPECT_EQ(good_in("indexed_job", {"E"}).shutdown_timeout.count(), 28);
  EXPECT_EQ(good_in("slurm_step", {"--shutdown-timeout=7", "E"}).shutdown_timeout.count(), 7);
  EXPECT_EQ(good_in("slurm_step", {"E"}, {{"TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "9"}})
                .shutdown_timeout.count(),
            9);
  EXPECT_EQ(good_in("sagemaker", {"E"}).shutdown_timeout.count(), 30);
}

TEST(Deadlines, AreAskedForWhereNoVariableSaysThem) {
  EXPECT_EQ(good_in("slurm_step", {"E"}).ends_at->time_since_epoch().count(), 1795560000);
  EXPECT_EQ(good_in("slurm_step", {"E"}, {{"SLURM_JOB_END_TIME", "1795550000"}})
                .ends_at->time_since_epoch()
                .count(),
            1795550000);
  EXPECT_EQ(good_in("sagemaker", {"E"}).ends_at, std::nullopt);
}

TEST(Deadlines, AreThoseOfThisTaskOfAnArray) {
  Surroundings task = detect(recorded("slurm_step"));
  task.slurm_job = "5";
  const Ask ask = [](const auto&) {
    return std::optional<std::string>("8 1795570973\n55 1795570974\n5 1795570975\n6 N/A\n");
  };
  EXPECT_EQ(end_of_job(task, ask)->time_since_epoch().count(), 1795570975);
  task.slurm_job = "6";
  EXPECT_EQ(end_of_job(task, ask), std::nullopt);
}

TEST(Deadlines, AreUnknownWhereSlurmDoesNotAnswer) {
  const Surroundings step = detect(recorded("slurm_step"));
  for (const char* text : {"", "KillWait", "\nKillWait = x", "N/A\n", "NONE\n"}) {
    const Ask ask = [&](const auto&) { return std::optional<std::string>(text); };
    EXPECT_EQ(grace_under(step, ask), std::nullopt) << text;
    EXPECT_EQ(end_of_job(step, ask), std::nullopt) << text;
  }
  const Ask none = [](const auto&) { return std::optional<std::string>(); };
  EXPECT_EQ(grace_under(step, none), std::nullopt);
  EXPECT_EQ(end_of_job(step, none), std::nullopt);
  const Ask short_wait = [](const auto&) {
    return std::optional<std::string>("\nKillWait  = 1 sec");
  };
  EXPECT_EQ(grace_under(step, short_wait), std::chrono::seconds(0));
}

TEST(AskProgram, AnswersWhatItPrints) {
  EXPECT_EQ(ask_program({"sh", "-c", "echo a; echo b >&2"}), "a\n");
  EXPECT_EQ(ask_program({"cat"}), "");
  EXPECT_EQ(ask_program({"sh", "-c", "echo a; exit 1"}), std::nullopt);
  EXPECT_EQ(ask_program({"ddprun-no-such-program"}), std::nullopt);
}

TEST(AskProgram, TellsNobodyTheToken) {
  ::setenv("DDPRUN_TOKEN", "secret", 1);
  EXPECT_EQ(ask_program({"sh", "-c", "echo ${DDPRUN_TOKEN-none} ${PATH:+path}"}), "none path\n");
  ::unsetenv("DDPRUN_TOKEN");
}

TEST(AskProgram, WaitsForNobody) {
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_EQ(ask_program({"sleep", "1000"}), std::nullopt);
  EXPECT_EQ(ask_program({"sh", "-c", "exec >&-; exec sleep 1000"}), std::nullopt);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(10));
}

TEST(Placement, CountsTheCpusOfTheJob) {
  EXPECT_EQ(good_in("slurm_step", {"--nproc-per-node=cpu", "E"}).workers_per_node, 3);
  EXPECT_EQ(
      good_in("slurm_batch_script", {"--standalone", "--nproc-per-node=cpu", "E"}).workers_per_node,
      3);
  EXPECT_EQ(good_in("pytorchjob", {"--standalone", "--nproc-per-node=cpu", "E"}).workers_per_node,
            8);
  EXPECT_EQ(good_in("slurm_step", {"--nproc-per-node=cpu", "E"}, {{"TORCHELASTIC_RUN_ID", "x"}})
                .workers_per_node,
            8);
}

}  // namespace
}  // namespace ddprun::launcher
