// torchrun's event lines.
#include "agent/report/events.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace ddprun::agent {
namespace {

AgentConfig config() {
  AgentConfig config;
  config.worker_count = 2;
  return config;
}

TEST(Events, AreTorchrunsLines) {
  const WorkerExit exit{.local_rank = 1, .pid = 5, .exit_code = 3};
  const auto line = nlohmann::json::parse(event_line(
      {.state = EventState::kFailed, .hostname = "h", .worker = exit, .rank = 4}, config(), 2));
  EXPECT_EQ(line["name"], "torchelastic.worker.status.FAILED");
  EXPECT_EQ(line["source"], "WORKER");
  EXPECT_EQ(line["timestamp"], 0);
  EXPECT_EQ(line["metadata"]["global_rank"], 4);
  EXPECT_EQ(line["metadata"]["state"], "FAILED");
  EXPECT_EQ(line["metadata"]["agent_restarts"], 2);
}

}  // namespace
}  // namespace ddprun::agent
