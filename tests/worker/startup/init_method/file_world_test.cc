#include "worker/startup/init_method/file_world.h"

#include <gtest/gtest.h>

#include <map>
#include <string>

namespace ddprun::worker {
namespace {

using Surrounding = std::map<std::string, std::string>;

Result<WorkerEnv> world_at_file(const RankPreference& preference, const Surrounding& variables) {
  const auto lookup = [&variables](std::string_view name) -> std::optional<std::string> {
    const auto found = variables.find(std::string(name));
    return found == variables.end() ? std::nullopt : std::optional(found->second);
  };
  return file_world(preference, lookup, "init_method=file:///m");
}

std::string refused_world(const RankPreference& preference, const Surrounding& variables) {
  const auto world = world_at_file(preference, variables);
  return world ? "accepted" : world.error().message();
}

std::string path_of(std::string_view address) {
  const auto path = init_file_path(address, "DDPRUN_INIT_METHOD=" + std::string(address));
  if (!path) return path.error().message();
  return path->value_or("env");
}

TEST(InitFilePath, IsThatOfAFile) {
  EXPECT_EQ(path_of("file:///shared/run 1"), "/shared/run 1");
  EXPECT_EQ(path_of("file:///m"), "/m");
  EXPECT_EQ(path_of("env://"), "env");
  EXPECT_EQ(path_of(""), "env");
}

TEST(InitFilePath, IsRefusedInOneLine) {
  const std::string expected =
      ": expected env:// or file:///PATH, an absolute path without ? and #";
  for (const std::string address :
       {"file://", "file:///", "file://m", "file://./m", "file:///m/", "/m", "tcp://10.0.0.1:23456",
        "file:/m", "FILE:///m", "file:///m?rank=0&world_size=2", "file:///m#1"})
    EXPECT_EQ(path_of(address), "DDPRUN_INIT_METHOD=" + address + expected);
  EXPECT_EQ(path_of("file:///m\nx"), "DDPRUN_INIT_METHOD=file:///m" + expected);
}

TEST(FileWorld, IsWhatTheProgramSays) {
  // The variables of another world, in which this process may be, too.
  const Surrounding other{{"RANK", "7"}, {"WORLD_SIZE", "8"}, {"LOCAL_WORLD_SIZE", "8"}};
  const auto world = world_at_file({.rank = 1, .world_size = 3}, other).value();
  EXPECT_EQ(world.rank, 1);
  EXPECT_EQ(world.world_size, 3);
  EXPECT_EQ(world.role_rank, 1);
  EXPECT_EQ(world.role_world_size, 3);
  EXPECT_EQ(world.local_world_size, 1);
  EXPECT_EQ(world.run_id, "none");
}

TEST(FileWorld, IsWhatTheVariablesSay) {
  const auto by_hand = world_at_file({}, {{"RANK", "2"}, {"WORLD_SIZE", "4"}}).value();
  EXPECT_EQ(by_hand.rank, 2);
  EXPECT_EQ(by_hand.world_size, 4);
  EXPECT_EQ(by_hand.local_world_size, 1);
  const auto launched = world_at_file({}, {{"RANK", "2"},
                                           {"WORLD_SIZE", "4"},
                                           {"LOCAL_WORLD_SIZE", "4"},
                                           {"MASTER_ADDR", "n1"},
                                           {"MASTER_PORT", "no port"},
                                           {"TORCHELASTIC_RUN_ID", "run7"},
                                           {"TORCHELASTIC_RESTART_COUNT", "3"}})
                            .value();
  EXPECT_EQ(launched.local_world_size, 4);
  EXPECT_EQ(launched.run_id, "run7");
  EXPECT_EQ(launched.restart_count, 3);
}

// Several hosts, ranks dealt to them in turn, and nothing that names the first host. The file makes
// it all good.
TEST(FileWorld, IsWhatMpiSays) {
  const Surrounding mpi{{"OMPI_COMM_WORLD_SIZE", "4"},
                        {"OMPI_COMM_WORLD_RANK", "1"},
                        {"OMPI_COMM_WORLD_LOCAL_RANK", "0"},
                        {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                        {"PMIX_NAMESPACE", "12345"}};
  const auto world = world_at_file({}, mpi).value();
  EXPECT_EQ(world.rank, 1);
  EXPECT_EQ(world.world_size, 4);
  EXPECT_EQ(world.run_id, "mpirun-12345");
  EXPECT_NE(world.local_world_size, 4);
  Surrounding one_host = mpi;
  one_host["OMPI_COMM_WORLD_LOCAL_SIZE"] = "4";
  EXPECT_EQ(world_at_file({}, one_host).value().local_world_size, 4);
}

TEST(FileWorld, IsThatOfASlurmStepOrOfMpich) {
  const Surrounding slurm{{"SLURM_JOB_ID", "9"},
                          {"SLURM_STEP_ID", "1"},
                          {"SLURM_STEP_NUM_TASKS", "3"},
                          {"SLURM_PROCID", "2"},
                          {"SLURM_LOCALID", "0"},
                          {"SLURM_NODEID", "1"},
                          {"SLURM_STEP_TASKS_PER_NODE", "2,1"}};
  EXPECT_EQ(world_at_file({}, slurm).value().run_id, "srun-9.1");
  EXPECT_EQ(world_at_file({}, slurm).value().rank, 2);
  const Surrounding mpich{{"PMI_SIZE", "2"}, {"PMI_RANK", "1"}, {"MPI_LOCALRANKID", "0"}};
  EXPECT_EQ(world_at_file({}, mpich).value().rank, 1);
  EXPECT_EQ(world_at_file({}, mpich).value().run_id, "none");
}

TEST(FileWorld, RefusesInOneLine) {
  const std::string named = "init_method=file:///m: ";
  EXPECT_EQ(refused_world({}, {}),
            named +
                "nothing says which rank this process is: set RANK and WORLD_SIZE, give rank and "
                "world_size to bootstrap(), or start it with mpirun or srun");
  EXPECT_EQ(refused_world({.rank = 1}, {{"WORLD_SIZE", "2"}}),
            named + "rank and world_size go together, one is not given");
  for (const int rank : {-1, 2, 3})
    EXPECT_EQ(refused_world({.rank = rank, .world_size = 2}, {}),
              named + "rank=" + std::to_string(rank) +
                  " with world_size=2: expected a rank from 0 on that is below it");
  EXPECT_NE(refused_world({.rank = 0, .world_size = 0}, {}), "accepted");
  EXPECT_EQ(refused_world({.rank = 0, .world_size = 2'000'000}, {}),
            named + "a world of 2000000 ranks, expected at most 1048576");
  EXPECT_EQ(refused_world({}, {{"RANK", "4"}, {"WORLD_SIZE", "4"}}),
            "RANK=4 with WORLD_SIZE=4 in the environment: RANK must be below WORLD_SIZE");
  EXPECT_NE(refused_world({}, {{"RANK", "4"}}).find("WORLD_SIZE is not set"), std::string::npos);
  EXPECT_EQ(refused_world({}, {{"PMI_SIZE", "2"}, {"PMI_RANK", "x"}, {"MPI_LOCALRANKID", "0"}}),
            "PMI_RANK=x: expected a number");
  EXPECT_EQ(refused_world({}, {{"PMI_SIZE", "2"}, {"PMI_RANK", "2"}, {"MPI_LOCALRANKID", "0"}}),
            named + "the starter says rank 2 of 2");
}

}  // namespace
}  // namespace ddprun::worker
