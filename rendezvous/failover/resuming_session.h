// A node's session with a host that nobody follows (c10d, static, a lone ddprund). To the agent it
// is one session from the first join to the end. When its connection breaks, it connects again and
// says how far this node is (SessionMemory); the workers go on meanwhile, until the lease ends.
// Then the agent is told that its round broke, and for `rejoin_limit` the node still comes back, as
// one without workers.
//
// A host whose process is dead refuses connections where it let us in: then the session is lost at
// once, and the workers have their grace, but no longer than the lease. Not where the host returns:
// a ddprund that is started anew. Loop's thread; owned by NodeServices.
#pragma once

#include <boost/asio/ip/tcp.hpp>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/alarm.h"
#include "base/loop.h"
#include "base/net/liveness_probe.h"
#include "base/wait_teller.h"
#include "rendezvous/core/rendezvous.h"
#include "rendezvous/core/session_memory.h"

namespace ddprun::rendezvous {

class ResumingSession final : public Session {
 public:
  using Time = std::chrono::steady_clock::time_point;
  using LetIn = std::function<void(const std::string& address, std::uint16_t port)>;
  // Opens a session with the host; `let_in` is called when the host let it in. The first one waits
  // for a host that is not up yet; the others try once, for a node whose workers may live until
  // `workers_until`, which may be over.
  using Open = std::function<std::unique_ptr<Session>(std::optional<Time> workers_until,
                                                      LetIn let_in, MessageHandler)>;

  // `loop` must outlive the session.
  ResumingSession(asio::io_context& loop, Open open, std::chrono::milliseconds rejoin_limit,
                  MessageHandler handler);
  ResumingSession(const ResumingSession&) = delete;
  ResumingSession& operator=(const ResumingSession&) = delete;
  ~ResumingSession() override = default;

  void join(const NodeSpec& node) override;
  void resume(const ResumeRequest& node) override { join(node.spec); }
  void report_failure(std::int64_t round, const Failure& failure) override;
  void report_success(std::int64_t round) override;
  void leave(const Failure& reason) override;
  void gone() override;
  std::optional<WaitStatus> wait_status() const override;
  Unreached unreached() const override;

 private:
  void open();
  void let_in(const std::string& address, std::uint16_t port);
  void heard(const HostMessage& message);
  void reconnect(const SessionLost& lost);
  void look_again();
  void fence();
  void give_up(bool is_fenced);
  // Until when the state that it is in may last, while there is no session.
  Time limit() const { return is_fenced_ ? rejoin_until_ : lost_->lease_ends; }
  std::string still_lost(std::chrono::seconds waited) const;

  asio::io_context& loop_;
  std::vector<asio::ip::tcp::endpoint> host_;  // where it let us in
  const Open open_;
  const std::chrono::milliseconds rejoin_limit_;
  const MessageHandler handler_;
  SessionMemory memory_;
  std::unique_ptr<Session> session_;  // null while it waits for the next try
  // While there is no session that was let in: why, and what was found out about the host.
  std::optional<SessionLost> lost_;
  std::string last_try_;  // why it failed
  std::unique_ptr<LivenessProbe> probe_;
  WaitTeller wait_;
  bool is_fenced_ = false;  // and the lease is over
  Time rejoin_until_{};     // then
  // The session of a lease that ended. The host must not hear of its end before our workers are
  // gone.
  std::unique_ptr<Session> fenced_;
  Time let_in_at_{};
  Alarm alarm_;
};

}  // namespace ddprun::rendezvous
