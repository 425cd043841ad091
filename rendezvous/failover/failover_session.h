// A node's session that outlives its host: Failover with a clock, a timer and real sessions. To the
// agent it is one session from the first join to the end. It decides nothing itself. The shells
// that derive from it open the sessions with the host, and do what only one policy needs.
//
// Loop's thread; owned by NodeServices.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "base/alarm.h"
#include "base/loop.h"
#include "base/wait_teller.h"
#include "rendezvous/core/rendezvous.h"
#include "rendezvous/failover/failover.h"

namespace ddprun::rendezvous {

class FailoverSession : public Session {
 public:
  FailoverSession(const FailoverSession&) = delete;
  FailoverSession& operator=(const FailoverSession&) = delete;
  ~FailoverSession() override = default;

  void join(const NodeSpec& node) final;
  // The agent never says it: for the agent this session is the same from the first join to the end.
  void resume(const ResumeRequest& node) final { join(node.spec); }
  void report_failure(std::int64_t round, const Failure& failure) final;
  void report_success(std::int64_t round) final;
  void suspect(std::int64_t round) final;
  void give_evidence(std::int64_t round, std::int64_t inquiry,
                     const std::vector<RankEvidence>& evidence) final;
  void report_replicas(const ReplicaReport& report) final;
  void report_steps(const StepReport& report) final;
  void give_notice(const Notice& notice) final;
  void answer_step(const StepAnswer& answer) final;
  void leave(const Failure& reason) final;
  void gone() final;
  std::optional<WaitStatus> wait_status() const final;

 protected:
  // `loop` must outlive the session.
  FailoverSession(asio::io_context& loop, const FailoverRules& rules, MessageHandler handler);

  using Words = std::function<void(Session&)>;
  // `words`: what PassOn says. After this returns, the agent may have destroyed this session.
  void perform(const FailoverActions& actions, const Words& words = {});
  void on_message(const HostMessage& message);

  // Opens a session with the host of now, whose messages go to on_message().
  virtual std::unique_ptr<Session> open() = 0;
  // Performs an action that only the policy of this shell has.
  virtual void act(const FailoverAction& action) = 0;

  Failover& failover() { return failover_; }
  const Failover& failover() const { return failover_; }
  // Null if there is none now.
  const Session* session() const { return session_.get(); }
  void begin_session(std::unique_ptr<Session> session) { session_ = std::move(session); }
  void end_sessions();

 private:
  void perform_one(const OpenSession& /*action*/) { session_ = open(); }
  void perform_one(const CloseSession& /*action*/) { session_.reset(); }
  void perform_one(const AbandonSession& /*action*/) { session_->abandon(); }
  void perform_one(const FenceSession& /*action*/) { fenced_ = std::move(session_); }
  void perform_one(const EndFencedSession& /*action*/) { fenced_.reset(); }
  void perform_one(const Replay& /*action*/) { failover_.replay_to(*session_); }
  void perform_one(const Deliver& action) { handler_(action.message); }
  void perform_one(const BeginWait& action);
  void perform_one(const EndWait& /*action*/) { wait_.end(); }
  void perform_one(const Log& action);

  const MessageHandler handler_;
  Failover failover_;
  std::unique_ptr<Session> session_;  // with the host of now
  std::unique_ptr<Session> fenced_;   // with a host whose lease ended here
  Alarm alarm_;
  WaitTeller wait_;  // for a host
};

}  // namespace ddprun::rendezvous
