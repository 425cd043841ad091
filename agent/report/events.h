// torchrun's event lines (--event-log-handler=console). One JSON object tells each thing that
// happens to the workers of a node. It has the field names of torch/distributed/elastic/events/ of
// 2.11. Two things differ. `local_rank` stands beside the other fields and not in the inner text.
// The node's rank is always null. And the text that the health port answers with. Makes text only;
// the reporter and the health port write it. Pure; any thread.
#pragma once

#include <chrono>
#include <optional>
#include <string>

#include "agent/core/config.h"
#include "agent/core/lifecycle.h"

namespace ddprun::agent {

enum class EventState { kRendezvous, kAssignRanks, kStart, kSucceeded, kFailed };

// The content of one line.
struct JobEvent {
  EventState state = EventState::kRendezvous;
  std::string hostname;
  std::chrono::milliseconds since_start{};  // since the agent started
  // The worker that the event is about. Unset if it is about the agent.
  std::optional<WorkerExit> worker{};
  int rank = 0;  // global rank of that worker
};

// One line, with its newline. `restarts`: restarts of the job so far.
std::string event_line(const JobEvent& event, const AgentConfig& config, int restarts);

// The answer to a probe of the health port: one line with one JSON object. It has the node's phase
// (lifecycle.h), the number of its live workers, and the attempt, counted from 0.
std::string health_line(const Lifecycle& lifecycle);

}  // namespace ddprun::agent
