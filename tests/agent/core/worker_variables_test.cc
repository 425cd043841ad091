// The environment that a worker is given.
#include "agent/core/worker_variables.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

namespace ddprun::agent {
namespace {

AgentConfig config() {
  AgentConfig config;
  config.worker_count = 2;
  config.base_env = {"PATH=/bin", "RANK=inherited", "CUDA_VISIBLE_DEVICES=7,5"};
  return config;
}

rendezvous::Round two_seats() {
  rendezvous::Round round{.restart_count = 3, .world_size = 3, .master_addr = "m"};
  round.seats = {{.local_world_size = 1}, {.local_world_size = 2, .first_rank = 1}};
  return round;
}

bool holds(const std::vector<std::string>& env, const std::string& entry) {
  return std::count(env.begin(), env.end(), entry) == 1;
}

TEST(WorkerVariables, OverrideWhatIsInheritedOnce) {
  const auto env = worker_variables(config(), two_seats(), 1,
                                    {.seat = 1, .interface = "eth0", .timer_file = "/t"});
  for (const char* entry : {"PATH=/bin", "RANK=2", "LOCAL_RANK=1", "WORLD_SIZE=3", "GROUP_RANK=1",
                            "CUDA_VISIBLE_DEVICES=7,5", "TORCHELASTIC_RESTART_COUNT=3",
                            "GLOO_SOCKET_IFNAME=eth0", "TORCHELASTIC_TIMER_FILE=/t",
                            "TORCHELASTIC_SIGNALS_TO_HANDLE=SIGTERM,SIGINT,SIGHUP,SIGQUIT"})
    EXPECT_TRUE(holds(env, entry)) << entry;
}

TEST(WorkerVariables, AVirtualLocalRankIsZeroWithOneDevice) {
  AgentConfig virtual_ranks = config();
  virtual_ranks.virtual_devices = {"7", "5"};
  const auto env = worker_variables(virtual_ranks, two_seats(), 1, {.seat = 1});
  EXPECT_TRUE(holds(env, "LOCAL_RANK=0"));
  EXPECT_TRUE(holds(env, "RANK=2"));
  EXPECT_TRUE(holds(env, "CUDA_VISIBLE_DEVICES=5"));
  virtual_ranks.base_env.emplace_back("HIP_VISIBLE_DEVICES=7,5");
  EXPECT_TRUE(
      holds(worker_variables(virtual_ranks, two_seats(), 0, {.seat = 1}), "HIP_VISIBLE_DEVICES=7"));
}

}  // namespace
}  // namespace ddprun::agent
