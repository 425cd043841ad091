// A node's session with a host that nobody follows (c10d, static, a lone ddprund). It is Failover
// with one host and a probe of its port. When the connection breaks, it connects again and says how
// far this node is (SessionMemory). The workers go on meanwhile, until the lease ends. Then the
// agent is told that its round broke. For `rejoin_limit` the node still comes back, as one without
// workers.
//
// A host whose process is dead refuses connections at the address where it let us in. Then the
// session is lost at once, and the workers have their grace, but no longer than the lease. A
// ddprund that is started anew returns, so it is not probed. Loop's thread; owned by NodeServices.
#pragma once

#include <boost/asio/ip/tcp.hpp>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/loop.h"
#include "base/net/liveness_probe.h"
#include "rendezvous/core/rendezvous.h"
#include "rendezvous/failover/failover_session.h"

namespace ddprun::rendezvous {

class ResumingSession final : public FailoverSession {
 public:
  using Time = std::chrono::steady_clock::time_point;
  using OnAdmitted = std::function<void(const std::string& address, std::uint16_t port)>;
  // Opens a session with the host; `on_admitted` is called when the host let it in. The first one
  // waits for a host that is not up yet. The others try once. The workers may live until
  // `workers_until`, which may be over.
  using Open = std::function<std::unique_ptr<Session>(std::optional<Time> workers_until,
                                                      OnAdmitted on_admitted, MessageHandler)>;

  // `loop` must outlive the session.
  ResumingSession(asio::io_context& loop, Open open, std::chrono::milliseconds rejoin_limit,
                  MessageHandler handler);
  ResumingSession(const ResumingSession&) = delete;
  ResumingSession& operator=(const ResumingSession&) = delete;
  ~ResumingSession() override = default;

  UnreachedHost unreached() const override;

 private:
  std::unique_ptr<Session> open() override;
  void act(const FailoverAction& action) override;

  asio::io_context& loop_;
  std::vector<asio::ip::tcp::endpoint> host_;  // where it let us in
  const Open open_;
  std::unique_ptr<LivenessProbe> probe_;  // while it is not known whether the host is dead
};

}  // namespace ddprun::rendezvous
