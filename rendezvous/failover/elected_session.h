// A node's session in a job whose nodes elect their leader (etcd). To the agent it is one session
// from the first join to the end. Behind it is a session with whoever leads: in this process, or
// over the network. When that session is lost, the workers go on until the lease ends. Whoever
// leads then is told how far this node is (SessionMemory), and decides. The agent hears nothing of
// it, unless no leader lets this node in by the end of the lease: then its round is broken. Loop's
// thread; owned by NodeServices, which hosts the rendezvous if this node is elected.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "base/alarm.h"
#include "base/loop.h"
#include "base/wait_teller.h"
#include "rendezvous/core/rendezvous.h"
#include "rendezvous/core/session_memory.h"
#include "rendezvous/election/election.h"

namespace ddprun::rendezvous {

class ElectedSession final : public Session {
 public:
  using RecordRound = std::function<void(JobRecord, std::function<void()> recorded)>;
  // What NodeServices does for it.
  struct Ways {
    // Workers go on without a leader while the lease of the one before holds.
    bool resumes = false;
    // As Election::Handlers::own_address.
    std::function<Result<Leader>()> own_address;
    // Hosts the rendezvous here; every round goes through `record` first (Host::record_round).
    // It gives its nodes leases while `may_grant` says so.
    std::function<std::unique_ptr<Session>(JobRecord, RecordRound record,
                                           std::function<bool()> may_grant, MessageHandler)>
        lead;
    // Opens a session with the leader. It tries once; `let_in` is called when the leader let it in.
    // Its workers may live until `workers_until` (RemoteOptions); zero: there are none.
    std::function<std::unique_ptr<Session>(const Leader&, Time workers_until,
                                           std::function<void()> let_in, MessageHandler)>
        follow;
    // Tells the nodes of the rendezvous here why it ends.
    std::function<void(const Error&)> tell_end;
    // Ends the rendezvous here and stops listening. No session of it is left.
    std::function<void()> stop_leading;
    // Until when the workers may live unless more is heard. A follower's session says it itself.
    std::function<void(Time)> workers_until;
  };

  // `loop` must outlive the session. Looks for a leader at once.
  ElectedSession(asio::io_context& loop, ElectionOptions options, Ways ways,
                 MessageHandler handler);
  ElectedSession(const ElectedSession&) = delete;
  ElectedSession& operator=(const ElectedSession&) = delete;
  ~ElectedSession() override = default;

  void join(const NodeSpec& node) override;
  void resume(const ResumeRequest& node) override;
  void report_failure(std::int64_t round, const Failure& failure) override;
  void report_success(std::int64_t round) override;
  void leave(const Failure& reason) override;
  void gone() override;
  std::optional<WaitStatus> wait_status() const override;
  Unreached unreached() const override;

 private:
  void lead(JobRecord record);
  JobRecord remember();
  void follow(const Leader& leader);
  void change_leader(const Leader& next);
  void ask(SessionLost& lost);
  void deposed(const std::string& why, bool stood_still);
  void job_over(bool succeeded);
  void heard(const HostMessage& message);
  bool may_be_another(const SessionLost& lost);
  void lose(SessionLost lost);
  void let_in();
  void break_round(const SessionLost& lost);
  void end(bool succeeded, const HostMessage& message);
  void begin_wait();

  const Ways ways_;
  const MessageHandler handler_;
  std::string leader_;  // host name; empty: none was found yet
  bool leads_ = false;
  // The leader before said itself that it leads no more: its node comes back as any other.
  bool leader_lives_ = false;
  // This node stood still past its lease. Until then it may not know that the others go on without
  // it.
  Time asks_until_{};
  bool is_over_ = false;
  // Since when nobody at the leader's address has proved that he knows the job's token.
  std::optional<std::chrono::steady_clock::time_point> unproven_since_;
  std::string last_loss_;  // why the last try to have a leader ended; empty: it let this node in
  SessionMemory memory_;
  Election election_;
  std::unique_ptr<Session> session_;  // with the leader; null: it is looked for
  bool is_let_in_ = false;            // by the leader; before, nothing is said to it
  // Without a leader: the workers may live so long. The past: there are none, or they end at once.
  Time workers_until_{};
  bool goes_on_ = false;  // without a leader, until then, and they do not end
  SessionLost lost_;      // why there is none
  Alarm alarm_;           // at workers_until_
  WaitTeller wait_;       // for a leader
  // With a leader whose lease ended here. It must not hear of the end before our workers are gone.
  std::unique_ptr<Session> fenced_;
};

}  // namespace ddprun::rendezvous
