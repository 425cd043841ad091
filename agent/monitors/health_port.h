// TORCHELASTIC_HEALTH_CHECK_PORT: what a cluster asks whether this node's agent is alive (a
// liveness probe). torchrun warns that it has no such server; here it is one. Any GET or HEAD is
// answered 200 by the loop that does all the agent's work, so an agent that is stuck does not
// answer; everything else is 405. Loop's thread; owned by Monitors.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "proto/loop.h"
#include "proto/result.h"

namespace ddprun::agent {

// Probes at a time; one more is closed at once, so that strangers cost no more than this many
// descriptors. Each has this long to ask and to take the answer.
inline constexpr int kMostProbes = 16;
inline constexpr std::chrono::milliseconds kProbeLimit{10'000};

class HealthPort {
 public:
  // Listens on `port` of every address of this host: probes come from outside the container. The
  // answer's body is what `state` says then. Errors as store::bind_listener().
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
  struct State;  // outlives the HealthPort while its coroutines unwind

  explicit HealthPort(std::shared_ptr<State> state) : state_(std::move(state)) {}

  std::shared_ptr<State> state_;
};

}  // namespace ddprun::agent
