#include "worker/startup/init_method/mpi_world.h"

#include <gtest/gtest.h>

#include <map>
#include <string>

namespace ddprun::worker {
namespace {

using Variables = std::map<std::string, std::string>;

Result<std::optional<WorkerEnv>> world(const Variables& variables, int parent = 77) {
  return mpi_world(
      [variables](std::string_view name) -> std::optional<std::string> {
        const auto found = variables.find(std::string(name));
        return found == variables.end() ? std::nullopt : std::optional(found->second);
      },
      parent);
}

Variables open_mpi(int rank, int local_rank, int local_size = 2) {
  return {{"OMPI_COMM_WORLD_SIZE", "4"},
          {"OMPI_COMM_WORLD_RANK", std::to_string(rank)},
          {"OMPI_COMM_WORLD_LOCAL_RANK", std::to_string(local_rank)},
          {"OMPI_COMM_WORLD_LOCAL_SIZE", std::to_string(local_size)},
          {"PMIX_NAMESPACE", "12345"}};
}

Variables slurm(const std::string& tasks = "2(x2)") {
  return {{"SLURM_JOB_ID", "9"},
          {"SLURM_STEP_ID", "1"},
          {"SLURM_STEP_NUM_TASKS", "4"},
          {"SLURM_PROCID", "3"},
          {"SLURM_LOCALID", "1"},
          {"SLURM_NODEID", "1"},
          {"SLURM_STEP_TASKS_PER_NODE", tasks},
          {"SLURM_STEP_NODELIST", "node[03-04]"}};
}

TEST(MpiWorld, IsNothingForAProgramThatAPersonStarted) {
  EXPECT_EQ(world({}).value(), std::nullopt);
  EXPECT_EQ(world({{"PMI_RANK", "0"}}).value(), std::nullopt);
  // A batch script has tasks, and runs in no step of them.
  Variables batch = slurm();
  batch.erase("SLURM_STEP_ID");
  EXPECT_EQ(world(batch).value(), std::nullopt);
  Variables one = slurm("1");
  one["SLURM_STEP_NUM_TASKS"] = "1";
  EXPECT_EQ(world(one).value(), std::nullopt);
}

TEST(MpiWorld, IsThatOfOpenMpi) {
  const auto here = world(open_mpi(1, 1, 4)).value().value();
  EXPECT_EQ(here.rank, 1);
  EXPECT_EQ(here.world_size, 4);
  EXPECT_EQ(here.local_world_size, 4);
  EXPECT_EQ(here.master_addr, "127.0.0.1");
  EXPECT_TRUE(here.use_agent_store);
  EXPECT_EQ(here.run_id, "mpirun-12345");
  EXPECT_EQ(world(open_mpi(0, 0, 4)).value()->master_port, here.master_port);
  EXPECT_GE(here.master_port, 15000);
  EXPECT_LT(here.master_port, 29000);
}

TEST(MpiWorld, IsThatOfASlurmStep) {
  const auto here = world(slurm()).value().value();
  EXPECT_EQ(here.rank, 3);
  EXPECT_EQ(here.local_rank, 1);
  EXPECT_EQ(here.local_world_size, 2);
  EXPECT_EQ(here.node_rank, 1);
  EXPECT_EQ(here.node_count, 2);
  EXPECT_EQ(here.master_addr, "node03");
  EXPECT_EQ(here.run_id, "srun-9.1");
}

TEST(MpiWorld, IsThatOfMpichOnOneHost) {
  const Variables variables = {
      {"PMI_SIZE", "2"}, {"PMI_RANK", "1"}, {"MPI_LOCALRANKID", "1"}, {"MPI_LOCALNRANKS", "2"}};
  EXPECT_EQ(world(variables, 5).value()->run_id, "mpiexec-parent-5");
  EXPECT_NE(world(variables, 5).value()->master_port, world(variables, 6).value()->master_port);
}

Variables pals() {
  return {{"PALS_RANKID", "3"},       {"PMI_RANK", "3"},        {"PMI_SIZE", "4"},
          {"PALS_LOCAL_RANKID", "1"}, {"PALS_LOCAL_SIZE", "2"}, {"PALS_APID", "4e3a"},
          {"MASTER_ADDR", "x1000"}};
}

Variables jsrun() {
  return {{"JSM_NAMESPACE_SIZE", "4"},       {"JSM_NAMESPACE_RANK", "2"},
          {"JSM_NAMESPACE_LOCAL_RANK", "0"}, {"JSM_NAMESPACE_LOCAL_SIZE", "2"},
          {"LSB_JOBID", "714301"},           {"MASTER_ADDR", "h41n01"}};
}

TEST(MpiWorld, IsThatOfPals) {
  const auto here = world(pals()).value().value();
  EXPECT_EQ(here.rank, 3);
  EXPECT_EQ(here.world_size, 4);
  EXPECT_EQ(here.local_world_size, 2);
  EXPECT_EQ(here.node_rank, 1);
  EXPECT_EQ(here.master_addr, "x1000");
  EXPECT_EQ(here.run_id, "PALS-4e3a");
}

TEST(MpiWorld, IsThatOfJsrun) {
  const auto here = world(jsrun()).value().value();
  EXPECT_EQ(here.rank, 2);
  EXPECT_EQ(here.world_size, 4);
  EXPECT_EQ(here.node_rank, 1);
  EXPECT_EQ(here.master_addr, "h41n01");
  EXPECT_EQ(here.run_id, "jsrun-714301");
}

// A world of 1 in each process would train, and nobody would know.
TEST(MpiWorld, RefusesAStarterThatSaysHalf) {
  Variables half = pals();
  half.erase("PMI_SIZE");
  EXPECT_EQ(world(half).error().message(),
            "PALS_RANKID is set, so PALS starts this program, and PMI_SIZE, PALS_RANKID and "
            "PALS_LOCAL_RANKID are not all there: start it with ddprun, or let the ranks meet at a "
            "shared file (DDPRUN_INIT_METHOD=file:///PATH)");
  half = jsrun();
  half.erase("JSM_NAMESPACE_RANK");
  EXPECT_TRUE(world(half).error().message().starts_with("JSM_NAMESPACE_SIZE is set, so jsrun "));
  half = pals();
  half.erase("MASTER_ADDR");
  EXPECT_EQ(world(half).error().message(),
            "PALS starts this program on 2 hosts, and nothing names the host of rank 0: type "
            "`mpiexec --env MASTER_ADDR=HOST …`, or start it with ddprun");
}

TEST(MpiWorld, NamesTheFirstHostOfAList) {
  for (const auto& [list, first] : std::map<std::string, std::string>{{"a,b", "a"},
                                                                      {"node[3,5]", "node3"},
                                                                      {"r[1-2]n[1-4]", "r1n1"},
                                                                      {"n[01-02],m3", "n01"},
                                                                      {"r1-n7,r2", "r1-n7"}}) {
    Variables variables = slurm();
    variables["SLURM_STEP_NODELIST"] = list;
    EXPECT_EQ(world(variables).value()->master_addr, first);
  }
  Variables broken = slurm();
  broken["SLURM_STEP_NODELIST"] = "node[03";
  EXPECT_EQ(world(broken).error().message(),
            "SLURM_STEP_NODELIST=node[03: node[03 in the host list: a [ without a ]");
  Variables named = slurm();
  named["MASTER_ADDR"] = "10.0.0.9";
  EXPECT_EQ(world(named).value()->master_addr, "10.0.0.9");
}

TEST(MpiWorld, RefusesInOneLine) {
  EXPECT_EQ(world(open_mpi(2, 0)).error().message(),
            "mpirun starts this program on 2 hosts, and nothing names the host of rank 0: type "
            "`mpirun -x MASTER_ADDR=HOST …`, or start it with ddprun");
  EXPECT_EQ(world(open_mpi(1, 0)).error().message(),
            "mpirun does not number the ranks host by host, as many on each: type `mpirun --map-by "
            "ppr:N:node` with `--rank-by slot`");
  EXPECT_EQ(world(slurm("3,1")).error().code(), ErrorCode::kInvalidArgument);
  Variables broken = open_mpi(0, 0, 4);
  broken["OMPI_COMM_WORLD_RANK"] = "x";
  EXPECT_EQ(world(broken).error().message(), "OMPI_COMM_WORLD_RANK=x: expected a number");
  broken["OMPI_COMM_WORLD_RANK"] = "4";
  EXPECT_EQ(world(broken).error().message(),
            "mpirun says OMPI_COMM_WORLD_RANK=4 of OMPI_COMM_WORLD_SIZE=4");
  EXPECT_FALSE(world(slurm("2(x")).has_value());
}

}  // namespace
}  // namespace ddprun::worker
