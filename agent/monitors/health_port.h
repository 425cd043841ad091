// The server behind TORCHELASTIC_HEALTH_CHECK_PORT. A cluster asks it whether this node's agent is
// alive (a liveness probe). torchrun 2.11 only warns that it has no such server. Every GET or HEAD
// is answered with 200, everything else with 405. The agent's own loop answers, so an agent that is
// stuck does not answer. HealthPort does not judge the workers: 200 says only that the loop runs.
// base/net/http/server.h is what serves. Runs on the loop's thread. Owned by Monitors.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "base/loop.h"
#include "base/net/http/server.h"
#include "base/result.h"

namespace ddprun::agent {

// The most probes at a time. If one more comes, the one is closed that has been waited for longest.
// So unauthenticated peers, who can reach the port too, never cost more than this many descriptors.
inline constexpr int kMostProbes = 16;
// How long one probe has to ask and to take the answer. Then it is closed and its place is free.
inline constexpr std::chrono::milliseconds kProbeLimit{10'000};

class HealthPort {
 public:
  // Listens on `port` of every address of this host, because probes come from outside the
  // container. Calls `state` for each probe; its text, a JSON object, is the answer's body. Errors:
  // as bind_listener().
  static Result<std::unique_ptr<HealthPort>> open(asio::io_context& loop, std::uint16_t port,
                                                  std::function<std::string()> state,
                                                  std::chrono::milliseconds limit = kProbeLimit);
  HealthPort(const HealthPort&) = delete;
  HealthPort& operator=(const HealthPort&) = delete;
  HealthPort(HealthPort&&) = delete;
  HealthPort& operator=(HealthPort&&) = delete;
  ~HealthPort() = default;

  std::uint16_t port() const { return server_.port(); }

 private:
  HealthPort(asio::io_context& loop, asio::ip::tcp::acceptor bound, http::Pages pages,
             const http::HttpLimits& limits)
      : server_(loop, std::move(bound), std::move(pages), limits) {}

  http::Server server_;
};

}  // namespace ddprun::agent
