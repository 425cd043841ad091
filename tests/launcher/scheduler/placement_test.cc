#include "launcher/scheduler/placement.h"

#include <gtest/gtest.h>

#include "tests/launcher/scheduler/recorded.h"

namespace ddprun::launcher {
namespace {

TEST(Placement, NeedsNoFlagInASlurmStep) {
  const Options options = good_in("slurm_step", {"--nproc-per-node=2", "E"});
  EXPECT_EQ(options.rendezvous, Rendezvous::kC10d);
  EXPECT_EQ(options.nodes, (NodeCount{2, 2}));
  EXPECT_EQ(options.node_rank, 1);
  EXPECT_EQ(options.endpoint.host, "node01");
  EXPECT_EQ(options.endpoint.port, 15000 + 37 * 8);
  EXPECT_EQ(options.port_count, kJobPorts);
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
  EXPECT_EQ(conf.rendezvous_conf.settings.join_timeout, std::chrono::seconds(7));
  EXPECT_EQ(conf.rendezvous_conf.is_host, false);
}

// The variables of a step that has one node, as its job has.
const Variables kOneNode = {{"SLURM_JOB_NUM_NODES", "1"},
                            {"SLURM_NODEID", "0"},
                            {"SLURM_STEP_NUM_NODES", "1"},
                            {"SLURM_STEP_NODELIST", "node01"},
                            {"SLURM_STEP_TASKS_PER_NODE", "1"}};

TEST(Placement, CompletesAnElasticNumberOnOneNode) {
  const Options options = good_in("slurm_step", {"--nnodes=1:4", "E"}, kOneNode);
  EXPECT_EQ(options.rendezvous, Rendezvous::kC10d);
  EXPECT_EQ(options.nodes, (NodeCount{1, 4}));
  EXPECT_EQ(options.endpoint.host, "node01");
  EXPECT_EQ(options.rendezvous_conf.is_host, true);
  EXPECT_EQ(options.notices,
            std::vector<std::string>{"Slurm step slurm-1.0: 1 node, meeting at node01:15296"});
  EXPECT_EQ(good_in("slurm_step", {"E"}, kOneNode).rendezvous, Rendezvous::kLocal);
  EXPECT_TRUE(bad_in("slurm_step", {"--nnodes=2:4", "E"}, kOneNode)
                  .starts_with("2 --nnodes=2:4: this Slurm step has 1 node: "));
  // One node of two is refused with and without it.
  EXPECT_EQ(bad_in("slurm_step_on_one_of_two_nodes", {"--nnodes=1:4", "E"}),
            bad_in("slurm_step_on_one_of_two_nodes", {"E"}));
  EXPECT_TRUE(
      bad_in("open_mpi_on_one_host", {"--nnodes=1:4", "E"},
             {{"OMPI_COMM_WORLD_SIZE", "1"}, {"OMPI_COMM_WORLD_LOCAL_SIZE", "1"}})
          .starts_with("2 Open MPI runs ddprun on 1 node, and nothing names the first host: "));
}

TEST(Placement, RefusesAnElasticNumberInAnAllocationOfOneNode) {
  EXPECT_EQ(
      bad_in("slurm_batch_script", {"--nnodes=1:4", "E"}, {{"SLURM_JOB_NUM_NODES", "1"}}),
      "2 --nnodes=1:4: this Slurm job has 1 node, and it says of a step alone where nodes meet: "
      "type "
      "`srun --ntasks-per-node=1 --nodes=1 ddprun …`, or leave --nnodes out, or give "
      "--rdzv-backend=c10d --rdzv-endpoint=HOST:PORT beside it");
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
}

TEST(Placement, AsksWhetherThePodsOfAnIndexedJobAreOneJob) {
  EXPECT_EQ(bad_in("indexed_job", {"E"}),
            "2 this pod is JOB_COMPLETION_INDEX=3, and nothing says whether ddprun is one job of "
            "all pods: type --nnodes=N with the Job's number of completions, or --standalone for a "
            "job on each pod alone");
  EXPECT_EQ(good_in("indexed_job", {"--standalone", "E"}).rendezvous, Rendezvous::kLocal);
  const Options first = good_in("indexed_job", {"E"}, {{"JOB_COMPLETION_INDEX", "0"}});
  EXPECT_EQ(first.rendezvous, Rendezvous::kLocal);
  EXPECT_EQ(first.notices,
            std::vector<std::string>{"a job on this pod alone; type --nnodes=N with the Job's "
                                     "number of completions if its pods are one job, else "
                                     "--standalone"});
  EXPECT_TRUE(good_in("indexed_job", {"--standalone", "E"}, {{"JOB_COMPLETION_INDEX", "0"}})
                  .notices.empty());
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
              "2 this PBS job has 2 nodes, and ddprun runs on one of them: type `mpiexec -n 2 "
              "--ppn 1 "));
  EXPECT_TRUE(bad_in("cobalt_job", {"E"}).starts_with("2 this Cobalt job has 2 nodes"));
}

// Its hosts are listed, and nothing says whether programs can run on the first one.
TEST(Placement, LeavesTheNumberOfHostsOfAnLsfJobOpen) {
  EXPECT_EQ(bad_in("lsf_job", {"E"}),
            "2 this LSF job has 5 hosts, of which the first may be there for its script alone, and "
            "ddprun runs on one of them: type `jsrun --nrs=N --rs_per_host=1 --cpu_per_rs=ALL_CPUS "
            "--gpu_per_rs=ALL_GPUS ddprun …` with N hosts that run programs, or --standalone for "
            "a "
            "job on this node alone");
  EXPECT_EQ(good_in("lsf_job", {"--standalone", "E"}).nodes.max, 1);
  // jsrun says how many run.
  EXPECT_TRUE(bad_in("jsrun", {"E"}, {{"JSM_NAMESPACE_SIZE", "1"}, {"JSM_NAMESPACE_RANK", "0"}})
                  .starts_with("2 this jsrun is of a job with 4 nodes, and ddprun runs on one of "
                               "them: type `jsrun --nrs=4 "));
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
  // The number of nodes says neither which one this is, nor where the first one is.
  EXPECT_EQ(bad_in("pytorchjob", {"--nnodes=2", "E"}), bad_in("pytorchjob", {"E"}));
  EXPECT_EQ(
      good_in("pytorchjob", {"--nnodes=2", "--node-rank=1", "--master-addr=a", "E"}).node_rank, 1);
  EXPECT_EQ(good_in("pytorchjob", {"E"},
                    {{"PET_NNODES", "2"}, {"PET_NODE_RANK", "1"}, {"PET_MASTER_ADDR", "a"}})
                .node_rank,
            1);
}

TEST(Placement, RefusesWhatAnOperatorSaysBesideAScheduler) {
  const Variables others = {{"MASTER_ADDR", "a"}, {"WORLD_SIZE", "4"}, {"RANK", "1"}};
  EXPECT_EQ(bad_in("slurm_step", {"E"}, others),
            "2 WORLD_SIZE=4 and RANK=1 are set, and by this Slurm step it is node 1 of 2: type "
            "`unset WORLD_SIZE RANK` before it, or --nnodes=$WORLD_SIZE --node-rank=$RANK "
            "--master-addr=$MASTER_ADDR --master-port=$MASTER_PORT, or --standalone for a job on "
            "this node alone");
  EXPECT_EQ(bad_in("slurm_step", {"--nnodes=2", "E"}, others), bad_in("slurm_step", {"E"}, others));
  EXPECT_TRUE(
      bad_in("slurm_step", {"E"}, {{"MASTER_ADDR", "a"}, {"WORLD_SIZE", "2"}, {"RANK", "0"}})
          .starts_with("2 WORLD_SIZE=2 and RANK=0 are set"));
  EXPECT_TRUE(bad_in("indexed_job", {"E"}, others).starts_with("2 WORLD_SIZE=4 and RANK=1 "));
  // An allocation of one node.
  EXPECT_TRUE(
      bad_in(
          "slurm_batch_script", {"E"},
          {{"SLURM_JOB_NUM_NODES", "1"}, {"MASTER_ADDR", "a"}, {"WORLD_SIZE", "4"}, {"RANK", "1"}})
          .starts_with("2 WORLD_SIZE=4 and RANK=1 "));
  // Variables that say the same are in nobody's way, nor are some that say a part.
  Variables same = others;
  same["WORLD_SIZE"] = "2";
  EXPECT_EQ(good_in("slurm_step", {"E"}, same).run_id, "slurm-1.0");
  EXPECT_EQ(good_in("slurm_step", {"E"}, {{"MASTER_ADDR", "a"}, {"WORLD_SIZE", "4"}}).run_id,
            "slurm-1.0");
  EXPECT_EQ(good_in("slurm_step", {"--standalone", "E"}, others).nodes.max, 1);
  EXPECT_EQ(good_in("slurm_step", {"--nnodes=4", "--node-rank=1", "--master-addr=a", "E"}, others)
                .nodes.max,
            4);
}

TEST(Placement, TakesAnEmptyVariableForNone) {
  const Variables empty = {{"PET_RDZV_ID", ""},      {"PET_RDZV_ENDPOINT", ""},
                           {"PET_MASTER_ADDR", ""},  {"PET_NODE_RANK", ""},
                           {"PET_STANDALONE", "0"},  {"PET_NNODES", ""},
                           {"PET_RDZV_BACKEND", ""}, {"PET_MASTER_PORT", ""}};
  const Options options = good_in("slurm_step", {"E"}, empty);
  EXPECT_EQ(options.run_id, "slurm-1.0");
  EXPECT_EQ(options.nodes, (NodeCount{2, 2}));
  EXPECT_TRUE(options.warnings.empty());
  EXPECT_EQ(good_in("slurm_step", {"E"}, {{"PET_STANDALONE", "1"}}).rendezvous, Rendezvous::kLocal);
  // An empty value on the command line is said.
  EXPECT_TRUE(bad_in("slurm_step", {"--rdzv-id=", "E"}).starts_with("2 --rdzv-id= without "));
}

TEST(Placement, RefusesARendezvousOfOneNodeInAStepOfSeveral) {
  EXPECT_EQ(bad_in("slurm_step", {"--rdzv-id=x", "E"}),
            "2 --rdzv-id=x without --nnodes is a job of 1 node, and this Slurm step has 2 nodes: "
            "type --nnodes=2 beside it, or no flag that says how nodes meet; --standalone means a "
            "job on each node alone");
  EXPECT_TRUE(bad_in("slurm_step", {"E"}, {{"PET_MASTER_PORT", "29501"}})
                  .starts_with("2 PET_MASTER_PORT=29501 without --nnodes is a job of 1 node"));
  EXPECT_TRUE(bad_in("open_mpi_in_slurm", {"--master-addr=node01", "E"})
                  .starts_with("2 --master-addr=node01 without --nnodes is a job of 1 node, and "
                               "this Open MPI has 2 nodes"));
  EXPECT_EQ(good_in("slurm_step", {"--nnodes=1", "--rdzv-id=x", "E"}).run_id, "x");
  // torchrun's page has this line for jobs of one node.
  EXPECT_EQ(
      good_in("slurm_step", {"--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0", "E"}).nodes.max,
      1);
  EXPECT_EQ(good_in("slurm_step_on_one_of_two_nodes", {"--rdzv-id=x", "E"}).run_id, "x");
}

// The variables of Slurm 22.05 for `salloc --nodes=2 : --nodes=1`, where a step runs on all of it.
Variables heterogeneous() {
  return {{"SLURM_HET_SIZE", "2"},
          {"SLURM_JOB_ID", "1"},
          {"SLURM_JOB_ID_HET_GROUP_0", "1"},
          {"SLURM_JOB_ID_HET_GROUP_1", "2"},
          {"SLURM_JOB_NUM_NODES", "3"},
          {"SLURM_JOB_NUM_NODES_HET_GROUP_0", "2"},
          {"SLURM_JOB_NUM_NODES_HET_GROUP_1", "1"},
          {"SLURM_NODEID", "2"},
          {"SLURM_STEP_NUM_NODES", "3"},
          {"SLURM_STEP_NODELIST", "node[01-03]"},
          {"SLURM_STEP_TASKS_PER_NODE", "1(x3)"}};
}

TEST(Placement, TakesAStepOnAllComponentsOfAHeterogeneousJob) {
  const Options options = good_in("slurm_step", {"E"}, heterogeneous());
  EXPECT_EQ(options.nodes, (NodeCount{3, 3}));
  EXPECT_EQ(options.node_rank, 2);
  EXPECT_EQ(options.endpoint.host, "node01");
  EXPECT_EQ(options.run_id, "slurm-1.0");
}

TEST(Placement, RefusesOneNodeOfAHeterogeneousJob) {
  Variables one = heterogeneous();
  one["SLURM_JOB_NUM_NODES"] = one["SLURM_STEP_NUM_NODES"] = "1";
  one["SLURM_NODEID"] = "0";
  one["SLURM_STEP_NODELIST"] = "node03";
  one["SLURM_STEP_TASKS_PER_NODE"] = "1";
  EXPECT_EQ(
      bad_in("slurm_step", {"E"}, one),
      "2 this Slurm step is of a job with 3 nodes, and ddprun runs on one of them: type `srun "
      "--het-group=0-1 --ntasks-per-node=1 ddprun …`, or --standalone for a job on this node "
      "alone");
  EXPECT_EQ(good_in("slurm_step", {"--standalone", "E"}, one).nodes.max, 1);
  EXPECT_EQ(bad_in("slurm_batch_script", {"E"},
                   {{"SLURM_HET_SIZE", "2"},
                    {"SLURM_JOB_NUM_NODES", "1"},
                    {"SLURM_JOB_NUM_NODES_HET_GROUP_0", "1"},
                    {"SLURM_JOB_NUM_NODES_HET_GROUP_1", "1"}}),
            "2 this Slurm job has 2 nodes, and ddprun runs on one of them: type `srun "
            "--het-group=0-1 --ntasks-per-node=1 ddprun …`, or --standalone for a job on this "
            "node "
            "alone");
  // Nodes with other ids would never meet.
  Variables apart = heterogeneous();
  apart["SLURM_JOB_ID"] = "2";
  EXPECT_EQ(bad_in("slurm_step", {"E"}, apart),
            "2 SLURM_JOB_ID=2: expected SLURM_JOB_ID_HET_GROUP_0=1 in a heterogeneous job");
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

TEST(Placement, CountsTheCpusOfTheJob) {
  EXPECT_EQ(good_in("slurm_step", {"--nproc-per-node=cpu", "E"}).workers_per_node, 3);
  EXPECT_EQ(
      good_in("slurm_batch_script", {"--standalone", "--nproc-per-node=cpu", "E"}).workers_per_node,
      3);
  // A pod is given a part of its machine, whoever set variables in it.
  EXPECT_EQ(good_in("pytorchjob", {"--standalone", "--nproc-per-node=cpu", "E"}).workers_per_node,
            3);
  EXPECT_EQ(good_in("slurm_step", {"--nproc-per-node=cpu", "E"}, {{"TORCHELASTIC_RUN_ID", "x"}})
                .workers_per_node,
            8);
}

}  // namespace
}  // namespace ddprun::launcher
