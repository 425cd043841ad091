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

// One worker on the first node, two on the second.
const rendezvous::Round kRound{
    .restart_count = 3, .world_size = 3, .node_count = 2, .master_addr = "m"};
constexpr rendezvous::Seat kSecond{.node_rank = 1, .first_rank = 1};

bool holds(const std::vector<std::string>& env, const std::string& entry) {
  return std::count(env.begin(), env.end(), entry) == 1;
}

TEST(WorkerVariables, OverrideWhatIsInheritedOnce) {
  const auto env = worker_variables(config(), kRound, 1,
                                    {.seat = kSecond, .interface = "eth0", .timer_file = "/t"});
  for (const char* entry : {"PATH=/bin", "RANK=2", "LOCAL_RANK=1", "WORLD_SIZE=3", "GROUP_RANK=1",
                            "CUDA_VISIBLE_DEVICES=7,5", "TORCHELASTIC_RESTART_COUNT=3",
                            "GLOO_SOCKET_IFNAME=eth0", "TORCHELASTIC_TIMER_FILE=/t",
                            "TORCHELASTIC_SIGNALS_TO_HANDLE=SIGTERM,SIGINT,SIGHUP,SIGQUIT"})
    EXPECT_TRUE(holds(env, entry)) << entry;
}

TEST(WorkerVariables, AVirtualLocalRankIsZeroWithOneDevice) {
  AgentConfig virtual_ranks = config();
  virtual_ranks.virtual_devices = {"7", "5"};
  const auto env = worker_variables(virtual_ranks, kRound, 1, {.seat = kSecond});
  EXPECT_TRUE(holds(env, "LOCAL_RANK=0"));
  EXPECT_TRUE(holds(env, "RANK=2"));
  EXPECT_TRUE(holds(env, "CUDA_VISIBLE_DEVICES=5"));
  virtual_ranks.device_variables = {"ZE_AFFINITY_MASK"};
  const auto other = worker_variables(virtual_ranks, kRound, 0, {.seat = kSecond});
  EXPECT_TRUE(holds(other, "ZE_AFFINITY_MASK=7"));
  EXPECT_TRUE(holds(other, "CUDA_VISIBLE_DEVICES=7,5")) << "another kind's list stays";
}

}  // namespace
}  // namespace ddprun::agent
