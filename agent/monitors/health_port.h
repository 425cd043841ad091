// The server behind TORCHELASTIC_HEALTH_CHECK_PORT. A cluster asks it whether this node's agent is
// alive (a liveness probe). torchrun 2.11 only warns that it has no such server. Every GET or HEAD
// is answered with 200, everything else with 405. The agent's own loop answers, so an agent that is
// stuck does not answer. HealthPort does not judge the workers: 200 says only that the loop runs.
// Runs on the loop's thread. Owned by Monitors.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "proto/loop.h"
#include "proto/result.h"

namespace ddprun::agent {

// The most probes at a time. One more is closed at once. So strangers, who can reach the port too,
// never cost more than this many descriptors.
inline constexpr int kMostProbes = 16;
// How long one probe has to ask and to take the answer. Then it is closed and its place is free.
inline constexpr std::chrono::milliseconds kProbeLimit{10'000};

class HealthPort {
 public:
  // Listens on `port` of every address of this host, because probes come from outside the
  // container. Calls `state` for each probe; its text, a JSON object, is the answer's body. Errors:
  // as store::bind_listener().
  static Result<std::unique_ptr<HealthPort>> open(asio::io_context& loop, std::uint16_t port,
                                                  std::function<std::string()> state,
                                                  std::chrono::milliseconds limit = kProbeLimit);
  HealthPort(const HealthPort&) = delete;
  HealthPort& operator=(const HealthPort&) = delete;
  HealthPort(HealthPort&&) = delete;
  HealthPort& operator=(HealthPort&&) = delete;
  ~HealthPort();

  std::uint16_t port() const;

 private:
  // Shared with the coroutines of the probes: they may end after the HealthPort.
  struct State;

  explicit HealthPort(std::shared_ptr<State> state) : state_(std::move(state)) {}

  std::shared_ptr<State> state_;
};

}  // namespace ddprun::agent
