// torchrun's event lines (--event-log-handler=console): one JSON object for what happens to a
// worker group, as torch/distributed/elastic/events/ 2.11 writes them; and the health port's
// answer. Pure text.
#pragma once

#include <chrono>
#include <optional>
#include <string>

#include "agent/core/config.h"
#include "agent/core/lifecycle.h"

namespace ddprun::agent {

enum class EventState { kRendezvous, kAssignRanks, kStart, kSucceeded, kFailed };

struct Event {
  EventState state = EventState::kRendezvous;
  std::string hostname;
  std::chrono::milliseconds since_start{};
  // Of one worker; unset for the agent's own.
  std::optional<WorkerExit> worker{};
  int rank = 0;  // of that worker
};

// One line, with its newline.
std::string event_line(const Event& event, const AgentConfig& config, int restarts);

// What a probe of the health port is told: one JSON object with the node's phase (lifecycle.h), its
// live workers and the attempt, from 0.
std::string health_line(const Lifecycle& lifecycle);

}  // namespace ddprun::agent
