// A node's session in a job whose nodes elect their leader (etcd): Failover with an election. The
// leader is in this process, or over the network. When the session with it is lost, the workers go
// on until the lease ends. The next leader is told how far this node is (SessionMemory), and
// decides. The agent hears nothing of it. If no leader lets this node in by the end of the lease,
// its round is broken. Loop's thread; owned by NodeServices, which hosts the rendezvous if this
// node is elected.
#pragma once

#include <functional>
#include <memory>

#include "base/loop.h"
#include "rendezvous/core/rendezvous.h"
#include "rendezvous/election/election.h"
#include "rendezvous/failover/failover_session.h"

namespace ddprun::rendezvous {

class ElectedSession final : public FailoverSession {
 public:
  using RecordRound = std::function<void(JobRecord, std::function<void()> recorded)>;
  // NodeServices does these for it.
  struct Callbacks {
    // Workers go on without a leader while the lease of the one before holds.
    bool resumes = false;
    // As Election::Handlers::own_address.
    std::function<Result<Leader>()> own_address;
    // Hosts the rendezvous here; every round goes through `record` first (Host::record_round).
    // It gives its nodes leases while `may_grant` says so.
    std::function<std::unique_ptr<Session>(JobRecord, RecordRound record,
                                           std::function<bool()> may_grant, MessageHandler)>
        lead;
    // Opens a session with the leader. It tries once; `on_admitted` is called when the leader let
    // it in. Its workers may live until `workers_until` (RemoteOptions); zero: there are none.
    std::function<std::unique_ptr<Session>(const Leader&, Time workers_until,
                                           std::function<void()> on_admitted, MessageHandler)>
        follow;
    // Tells the nodes of the rendezvous here why it ends.
    std::function<void(const Error&)> tell_end;
    // Ends the rendezvous here and stops listening. No session of it is left.
    std::function<void()> stop_leading;
    // Until when the workers may live unless more is heard. A follower's session says it itself.
    std::function<void(Time)> workers_until;
  };

  // `loop` must outlive the session. Looks for a leader at once.
  ElectedSession(asio::io_context& loop, ElectionOptions options, Callbacks callbacks,
                 MessageHandler handler);
  ElectedSession(const ElectedSession&) = delete;
  ElectedSession& operator=(const ElectedSession&) = delete;
  ~ElectedSession() override;

  UnreachedHost unreached() const override;

 private:
  Election::Handlers handlers();
  std::unique_ptr<Session> open() override;
  std::unique_ptr<Session> host_here(JobRecord record);
  void act(const FailoverAction& action) override;
  void perform_one(const LimitWorkers& action) { callbacks_.workers_until(action.until); }
  void perform_one(const LookForLeader& action) { election_.leader_lost(action.was_closed); }
  void perform_one(const AcceptLeader& /*action*/) { election_.followed(); }
  void perform_one(const RecordJob& action) {
    election_.publish(action.record, [] {});
  }
  void perform_one(const HostHere& action) { begin_session(host_here(action.record)); }
  void perform_one(const DismissNodes& action) { callbacks_.tell_end(action.why); }
  void perform_one(const StopHosting& /*action*/) { callbacks_.stop_leading(); }
  void perform_one(const Withdraw& /*action*/) { election_.withdraw(); }
  void perform_one(const RoundBegins& /*action*/) { election_.round_begins(); }
  void perform_one(const EndJob& action) { election_.job_ended(action.succeeded); }

  const Callbacks callbacks_;
  Leader leader_;  // the last one that was found
  Election election_;
};

}  // namespace ddprun::rendezvous
