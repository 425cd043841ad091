// The port of --http: /metrics, /healthz and the status page of this node. http/server.h serves
// them and bounds what unauthenticated peers can cost; node_status.h knows what they say. Without
// the flag there is no StatusPort and nothing listens. Loop's thread; owned by Agent.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "agent/monitors/node_status.h"
#include "agent/output/console.h"
#include "base/alarm.h"
#include "base/net/http/server.h"

namespace ddprun::agent {

class StatusPort {
 public:
  // All of it must outlive the port.
  struct Sources {
    const AgentConfig& config;
    const std::string& hostname;
    const Lifecycle& lifecycle;
    const IncidentLog& incidents;
    const rendezvous::Timeline& timeline;
    const std::unique_ptr<NodeServices>& services;  // null until they are there
    std::function<std::vector<WorkerProgress>()> progress;
    const Children& children;
  };

  // Null if nobody asked for it, or if the port cannot be had. The latter is logged as a warning:
  // the job is worth more than its metrics. One line on `console` says where the pages are, unless
  // --quiet.
  static std::unique_ptr<StatusPort> open(asio::io_context& loop, Console& console,
                                          Sources sources);

 private:
  StatusPort(asio::io_context& loop, asio::ip::tcp::acceptor bound, Sources sources);
  http::StatusReport report() const;
  void look_at_steps();

  const Sources sources_;
  const bool is_public_;
  const http::WallTime started_ = std::chrono::system_clock::now();
  StepHistory steps_;
  Alarm steps_alarm_;
  http::Server server_;  // last: it asks for reports
};

}  // namespace ddprun::agent
