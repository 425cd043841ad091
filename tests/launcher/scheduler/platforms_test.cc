// The variables of each platform that is known, for node 1 of a job of two nodes. No flag says
// anything of nodes. A world of two nodes forms, or one line says what to type.
#include <gtest/gtest.h>

#include <map>

#include "launcher/scheduler/placement.h"
#include "tests/launcher/scheduler/recorded.h"

namespace ddprun::launcher {
namespace {

struct Case {
  std::string name;
  std::string outcome;  // "rank/nodes host id", or the refusal
};

std::string outcome_in(const std::string& name, const Variables& more = {}) {
  const ParseResult parsed = parse_in(name, {"--nproc-per-node=2", "E"}, more);
  if (const auto* error = std::get_if<UsageError>(&parsed)) return error->message;
  const auto& options = std::get<Options>(parsed);
  return fmt::format("{}/{} {} {}", options.node_rank, options.nodes.max, options.endpoint.host,
                     options.run_id);
}

constexpr std::string_view kFlags =
    "type --nnodes=$WORLD_SIZE --node-rank=$RANK --master-addr=$MASTER_ADDR "
    "--master-port=$MASTER_PORT, or --standalone for a job on this node alone";

std::string on_one_of_two(const std::string& name, const std::string& command) {
  return fmt::format(
      "this {} has 2 nodes, and ddprun runs on one of them: type `{} ddprun …`, or --standalone "
      "for a job on this node alone",
      name, command);
}

TEST(Platforms, FormAWorldOfTwoNodesOrSayWhatToType) {
  const std::string slurm = "srun --ntasks-per-node=1 --nodes=2";
  const std::map<std::string, std::string> expected = {
      {"slurm_step", "1/2 node01 slurm-1.0"},
      {"slurm_batch_script", on_one_of_two("Slurm job", slurm)},
      {"open_mpi_in_slurm", "1/2 node01 mpi-91881473"},
      {"pals", "1/2 x1000c0s0b0n0 mpi-4e3a1c77-5f34-45f8-9c23-5b2c6f2d1f0e"},
      {"mpich_in_slurm", "1/2 node01 mpi-8"},
      {"pbs_job", on_one_of_two("PBS job", "mpiexec -n 2 --ppn 1")},
      {"cobalt_job", on_one_of_two("Cobalt job", "mpiexec -n 2 -ppn 1")},
      {"sagemaker", "1/2 algo-1 sagemaker-digits-2026-11-24-10-00-00-000"},
      {"trainer_2", "1/2 digits-node-0-0.digits none"},
      {"pytorchjob",
       fmt::format("WORLD_SIZE=2 and MASTER_ADDR=digits-master-0 are set, and ddprun takes nodes "
                   "from its flags: {}",
                   kFlags)},
      {"pai_dlc",
       fmt::format("WORLD_SIZE=2 and MASTER_ADDR=dlc-master-0 are set, and ddprun takes nodes from "
                   "its flags: {}",
                   kFlags)},
      {"vertex_pytorch",
       fmt::format("WORLD_SIZE=2 and MASTER_ADDR=cmle-training-workerpool0-ab-0 are set, and "
                   "ddprun takes nodes from its flags: {}",
                   kFlags)},
      {"volcano", "1/2 digits-worker-0.digits volcano-digits-worker-0.digits"},
      {"volcano_of_two_tasks",
       "this Volcano job has 2 tasks with 2 pods, and nothing says which is the first: type "
       "--nnodes=2 --rdzv-backend=c10d --rdzv-id=NAME --rdzv-endpoint=digits-master-0.digits, or "
       "--standalone for a job on this pod alone"},
      {"skypilot", "1/2 10.0.0.1 skypilot-sky-2026-11-27-10-00-00-000000_digits_1"},
      {"dstack", "1/2 10.0.0.1 dstack-5f1c2a44-9d0e-4a4b-8f0a-1f6e7d8c9b0a"},
      {"runpod", "1/2 10.65.0.2 runpod-10.65.0.2"},
      {"azure_ml", "1/2 10.0.0.4 azureml-patient_lamp_8d1f"},
      {"flux", "1/2 node01 flux-f2XzA1"},
      {"flux_of_four_tasks",
       "Flux job starts 4 ddpruns on one node: type `flux run -N 2 --tasks-per-node=1 ddprun …`; "
       "--nproc-per-node=N starts N workers on each, and --standalone means jobs of their own"},
      {"flux_allocation", on_one_of_two("Flux allocation", "flux run -N 2 --tasks-per-node=1")},
      {"condor",
       "HTCondor job runs ddprun on 2 nodes, and nothing names the first host: type "
       "MASTER_ADDR=HOST before it, as condor_chirp can tell it, for the host of rank 0, or "
       "--standalone for a job on each node alone"},
      {"lsf_without_file", on_one_of_two("LSF job", "mpirun --map-by ppr:1:node")},
      {"grid_engine", on_one_of_two("Grid Engine job", "mpirun --map-by ppr:1:node")},
      {"vertex", "1/2 cmle-training-workerpool0-ab-0 vertex-5912871034"},
      {"mind_cluster", "1/2 10.0.0.1 mindcluster-10.0.0.1"},
      {"lepton", "1/2 digits-0.digits-job-svc lepton-digits"},
      {"beaker", "1/2 node01.example.org beaker-01JB4C6W"},
  };
  EXPECT_GE(expected.size(), 24U);
  for (const auto& [name, outcome] : expected) EXPECT_EQ(outcome_in(name), outcome) << name;
}

TEST(Platforms, AreOneNodeWhereTheySayOne) {
  const std::map<std::string, Variables> alone = {
      {"skypilot", {{"SKYPILOT_NUM_NODES", "1"}, {"SKYPILOT_NODE_RANK", "0"}}},
      {"dstack", {{"DSTACK_NODES_NUM", "1"}, {"DSTACK_NODE_RANK", "0"}}},
      {"runpod", {{"NUM_NODES", "1"}, {"NODE_RANK", "0"}}},
      {"azure_ml", {{"AZUREML_NODE_COUNT", "1"}, {"NODE_RANK", "0"}, {"WORLD_SIZE", "1"}}},
      {"lepton", {{"LEPTON_JOB_TOTAL_WORKERS", "1"}, {"LEPTON_JOB_WORKER_INDEX", "0"}}},
      {"beaker", {{"BEAKER_REPLICA_COUNT", "1"}, {"BEAKER_REPLICA_RANK", "0"}}},
      {"vertex",
       {{"CLUSTER_SPEC",
         R"({"cluster":{"workerpool0":["a:2222"]},"task":{"type":"workerpool0","index":0}})"}}},
      {"mind_cluster", {{"WORLD_SIZE", "4"}, {"RANK", "0"}}},
      {"condor", {{"_CONDOR_NPROCS", "1"}, {"_CONDOR_PROCNO", "0"}}},
      {"volcano", {{"VC_WORKER_HOSTS", "digits-worker-0.digits"}, {"VC_TASK_INDEX", "0"}}},
      {"flux", {{"FLUX_JOB_NNODES", "1"}, {"FLUX_JOB_SIZE", "1"}, {"FLUX_TASK_RANK", "0"}}},
      {"lsf_without_file", {{"LSB_MCPU_HOSTS", "h0 16"}}},
      {"grid_engine", {{"NHOSTS", "1"}}},
  };
  for (const auto& [name, variables] : alone) {
    const Options options = good_in(name, {"--nproc-per-node=2", "E"}, variables);
    EXPECT_EQ(options.rendezvous, Rendezvous::kLocal) << name;
    EXPECT_TRUE(options.notices.empty() || options.notices.front().starts_with("OMP")) << name;
  }
}

TEST(Platforms, TellAFirstPodThatItMayNotBeAlone) {
  const Variables first = {{"VC_WORKER_HOSTS", ""}, {"VC_TASK_INDEX", "0"}};
  EXPECT_EQ(
      good_in("volcano", {"E"}, first).notices,
      std::vector<std::string>{"a job on this pod alone; write `plugins: {svc: []}` into the "
                               "Volcano job if its pods are one job, else type --standalone"});
  EXPECT_TRUE(good_in("volcano", {"--standalone", "E"}, first).notices.empty());
}

TEST(Platforms, TellAnAllocationThatItMayNotBeAlone) {
  const Variables lost = {{"PBS_NODEFILE", "/nowhere"}};
  EXPECT_EQ(good_in("pbs_job", {"E"}, lost).notices,
            std::vector<std::string>{
                "a job on this node alone; PBS_NODEFILE=/nowhere of this PBS job cannot be read: "
                "type --nnodes=N --rdzv-backend=c10d --rdzv-id=NAME --rdzv-endpoint=HOST if it has "
                "more nodes, else --standalone"});
  EXPECT_TRUE(good_in("pbs_job", {"--standalone", "E"}, lost).notices.empty());
}

TEST(Platforms, SayHowManyWorkersANodeHas) {
  const auto in = [](const std::string& name, const std::vector<std::string>& words,
                     const Variables& more = {}) { return good_in(name, words, more); };
  for (const char* name : {"sagemaker", "skypilot", "dstack", "runpod", "lepton", "mind_cluster"}) {
    EXPECT_EQ(in(name, {"E"}).workers_per_node, 4) << name;
    EXPECT_EQ(in(name, {"--nproc-per-node=2", "E"}).workers_per_node, 2) << name;
    EXPECT_EQ(in(name, {"--standalone", "E"}).workers_per_node, 1) << name;
  }
  EXPECT_EQ(in("azure_ml", {"E"}).workers_per_node, 1);
  EXPECT_EQ(in("skypilot", {"E"}, {{"SKYPILOT_NUM_GPUS_PER_NODE", "0"}}).workers_per_node, 1);
  EXPECT_EQ(in("skypilot", {"E"}, {{"PET_NPROC_PER_NODE", "3"}}).workers_per_node, 3);
  EXPECT_EQ(in("skypilot", {"E"}, {{"SKYPILOT_NODE_RANK", "0"}}).notices,
            (std::vector<std::string>{
                "SkyPilot task skypilot-sky-2026-11-27-10-00-00-000000_digits_1: 2 nodes, meeting "
                "at 10.0.0.1:" +
                    std::to_string(in("skypilot", {"E"}).endpoint.port.value_or(0)),
                "SKYPILOT_NUM_GPUS_PER_NODE says 4 for each node, each with a worker; "
                "--nproc-per-node=N sets it"}));
}

TEST(Platforms, RefuseVariablesThatDoNotSuffice) {
  const std::map<std::string, std::pair<Variables, std::string>> wrong = {
      {"skypilot",
       {{{"SKYPILOT_NODE_RANK", "2"}},
        "SKYPILOT_NODE_RANK=2: expected a number below SKYPILOT_NUM_NODES=2"}},
      {"dstack", {{{"DSTACK_NODES_NUM", "x"}}, "DSTACK_NODES_NUM=x: expected a number above 0"}},
      {"lepton",
       {{{"LEPTON_JOB_NAME", ""}, {"LEPTON_JOB_SERVICE_PREFIX", ""}, {"LEPTON_SUBDOMAIN", ""}},
        "Lepton job runs ddprun on 2 nodes, and nothing names the first host: type --nnodes=2 "
        "--rdzv-backend=c10d --rdzv-id=NAME --rdzv-endpoint=HOST for the host of rank 0, or "}},
      {"mind_cluster", {{{"WORLD_SIZE", "7"}}, "WORLD_SIZE=7: expected a multiple of "}},
      {"azure_ml",
       {{{"NODE_RANK", ""}},
        "AZUREML_NODE_COUNT=2: expected NODE_RANK and MASTER_ADDR beside it, as `distribution: "
        "{type: pytorch, process_count_per_instance: 1}` in the job sets them"}},
      {"volcano",
       {{{"VC_WORKER_HOSTS", ""}}, "VC_TASK_INDEX=1: expected the hosts of the tasks beside it"}},
      {"beaker",
       {{{"BEAKER_LEADER_REPLICA_HOSTNAME", ""}},
        "Beaker task runs ddprun on 2 nodes, and nothing names the first host: type "
        "`leaderSelection: true` "}},
      {"vertex",
       {{{"CLUSTER_SPEC",
          R"({"cluster":{"workerpool0":["a"],"workerpool1":["b"]},"task":{"type":"evaluator"}})"}},
        "CLUSTER_SPEC={"}},
  };
  for (const auto& [name, one] : wrong)
    EXPECT_TRUE(outcome_in(name, one.first).starts_with(one.second)) << outcome_in(name, one.first);
  EXPECT_EQ(outcome_in("azure_ml", {{"WORLD_SIZE", "8"}, {"RANK", "5"}, {"LOCAL_RANK", "1"}}),
            "Azure ML job starts 4 ddpruns on one node: type `distribution: {type: pytorch, "
            "process_count_per_instance: 1}` in the job; --nproc-per-node=N starts N workers on "
            "each, and --standalone means jobs of their own");
  // A script may set WORLD_SIZE itself in a job of one node.
  EXPECT_EQ(good_in("azure_ml", {"E"},
                    {{"AZUREML_NODE_COUNT", "1"},
                     {"NODE_RANK", ""},
                     {"LOCAL_RANK", ""},
                     {"RANK", ""},
                     {"WORLD_SIZE", "8"}})
                .rendezvous,
            Rendezvous::kLocal);
  EXPECT_EQ(bad_in("skypilot", {"--nnodes=3", "E"}),
            "2 --nnodes=3: this SkyPilot task has 2 nodes: leave --nnodes out; --nnodes=1 means a "
            "job on each node alone");
}

TEST(Platforms, AreToldFromProgramsWithTheSameVariables) {
  // A rank of another launcher, and a program of another platform.
  const Variables rank = {{"MASTER_ADDR", "a"}, {"MASTER_PORT", "1"},      {"RANK", "3"},
                          {"WORLD_SIZE", "8"},  {"LOCAL_WORLD_SIZE", "4"}, {"LOCAL_RANK", "3"},
                          {"NODE_RANK", "0"},   {"NUM_NODES", "2"},        {"JOB_ID", "7"},
                          {"CLUSTER_SPEC", "x"}};
  EXPECT_EQ(detect(rank).scheduler, Scheduler::kNone);
  EXPECT_EQ(detect({{"CLUSTER_SPEC", R"({"cluster": 7})"}}).scheduler, Scheduler::kNone);
  // HPE's Slingshot support in Flux sets the variables of PALS.
  Variables flux = recorded("flux");
  for (const auto& [name, value] : recorded("pals")) flux[name] = value;
  EXPECT_EQ(detect(flux).scheduler, Scheduler::kFlux);
  // Flux in a step of Slurm.
  flux = recorded("slurm_step");
  for (const auto& [name, value] : recorded("flux")) flux[name] = value;
  EXPECT_EQ(detect(flux).scheduler, Scheduler::kFlux);
}

TEST(Platforms, NameTheFirstHostForMpi) {
  Variables mpi = recorded("open_mpi_in_slurm");
  std::erase_if(mpi, [](const auto& entry) { return entry.first.starts_with("SLURM_"); });
  Variables in_lsf = mpi;
  in_lsf["LSB_MCPU_HOSTS"] = "h0 8 h1 8";
  EXPECT_EQ(detect(in_lsf).first_host, "h0");
  mpi["PE_HOSTFILE"] = "sge_hosts";
  EXPECT_EQ(detect(mpi).first_host, "h0.cluster");
}

TEST(Platforms, AskFluxForNoHostsThatAreKnown) {
  SchedulerInputs silent = facts();
  silent.ask = [](const std::vector<std::string>&) { return std::optional<std::string>(); };
  const auto placed = place(detect(recorded("flux"), silent), {.called = "ddprun"});
  ASSERT_FALSE(placed);
  EXPECT_EQ(placed.error().message(),
            "Flux job runs ddprun on 2 nodes, and nothing names the first host: type "
            "--env=MASTER_ADDR=HOST for the host of rank 0, or --standalone for a job on each node "
            "alone");
  Variables known = recorded("flux");
  known["MASTER_ADDR"] = "a";
  EXPECT_EQ(detect(known, silent).first_host, "a");
}

TEST(Platforms, SayNothingInAFluxAllocationOfOneNode) {
  SchedulerInputs one = facts();
  one.ask = [](const std::vector<std::string>&) { return std::optional<std::string>("1\n"); };
  const auto parsed = parse_in("flux_allocation", {"--nproc-per-node=2", "E"}, {}, one);
  const auto& options = std::get<Options>(parsed);
  EXPECT_EQ(options.rendezvous, Rendezvous::kLocal);
  EXPECT_TRUE(options.notices.empty() || options.notices.front().starts_with("OMP"));
}

TEST(Platforms, RefuseAFluxAllocationWhoseNodesNobodyCounts) {
  for (const char* answer : {"", "0\n", "many\n"}) {
    SchedulerInputs unclear = facts();
    unclear.ask = [answer](const std::vector<std::string>&) { return std::optional(answer); };
    const auto placed = place(detect(recorded("flux_allocation"), unclear), {.called = "ddprun"});
    ASSERT_FALSE(placed) << answer;
    EXPECT_EQ(placed.error().message(),
              "FLUX_URI=local:///tmp/flux-Xq1c/local-0: `flux getattr size` does not say how many "
              "nodes this Flux allocation has: put `flux` on PATH, or type --standalone for a job "
              "on this node alone");
  }
}

}  // namespace
}  // namespace ddprun::launcher
