// Failover with kSameHost: nobody follows the host.
#include <algorithm>
#include <utility>
#include <variant>

#include "rendezvous/failover/failover.h"

namespace ddprun::rendezvous {

namespace {

// The pause between two tries to have a session.
constexpr std::chrono::milliseconds kTryEvery{100};

}  // namespace

// The first session has what the node said in its queue.
FailoverActions Failover::admitted_again(Time now) {
  admitted_at_ = now;
  const bool was_lost = is_lost();
  host_ = HostState::kFollowing;
  has_followed_ = true;
  if (!was_lost) return {};
  FailoverActions actions = {
      Log{.is_warning = false,
          .line = has_lease_ended() ? "rendezvous: connected again"
                                    : "rendezvous: connected again; the workers were let be"},
      StopProbing{}};
  rejoin_until_ = workers_until_ = {};
  workers_ = memory_.is_in_round() ? Workers::kRunning : Workers::kNone;
  look_again_at_ = Time::max();
  end_wait(actions);
  actions.emplace_back(Replay{});
  return actions;
}

FailoverActions Failover::same_host_message(const HostMessage& message, Time now) {
  const auto* const lost = std::get_if<SessionLost>(&message);
  if (lost != nullptr && is_lost() && !lost->was_reached) {  // a try that failed
    last_loss_ = lost->error.message();
    return look_again(now);
  }
  if (lost != nullptr && lost->error.code() == ErrorCode::kUnavailable && lost->may_return)
    return host_lost(*lost, now);
  return {Deliver{message}};
}

FailoverActions Failover::host_lost(const SessionLost& lost, Time now) {
  lost_ = lost;
  last_loss_ = lost.error.message();
  has_followed_ = true;
  host_ = HostState::kSearching;
  workers_until_ = lost.lease_ends;
  waits_ = true;
  FailoverActions actions = {BeginWait{}};
  lost.is_fenced ? actions.emplace_back(FenceSession{}) : actions.emplace_back(CloseSession{});
  if (!lost.host_returns) actions.emplace_back(ProbeHost{});
  if (now >= lost.lease_ends) {
    lease_ended(now, actions);
    return actions;
  }
  if (workers_ == Workers::kRunning) workers_ = Workers::kOnLease;
  actions.emplace_back(Log{.line = last_loss_ + "; connecting again, the workers go on"});
  // A host that is about to end lets nodes in and sends them away again.
  const Time not_before = admitted_at_ + kTryEvery;
  if (now < not_before) {
    look_again_at_ = std::min(not_before, limit());
    return actions;
  }
  look_again_at_ = limit();
  host_ = HostState::kConnecting;
  actions.emplace_back(OpenSession{});
  return actions;
}

// Called when a try has failed, and when time has passed.
FailoverActions Failover::look_again(Time now) {
  FailoverActions actions;
  if (now >= limit()) {
    if (has_lease_ended()) return give_up(true);
    lease_ended(now, actions);
    return actions;
  }
  const bool has_failed = host_ == HostState::kConnecting;
  actions.emplace_back(CloseSession{});
  host_ = has_failed ? HostState::kSearching : HostState::kConnecting;
  look_again_at_ = has_failed ? std::min(now + kTryEvery, limit()) : limit();
  if (!has_failed) actions.emplace_back(OpenSession{});
  return actions;
}

// The others may start a round soon. If all workers have succeeded, none is left that could run
// beside it.
void Failover::lease_ended(Time now, FailoverActions& actions) {
  rejoin_until_ = now + rules_.rejoin_limit;
  host_ = HostState::kSearching;
  look_again_at_ = now + kTryEvery;
  actions.emplace_back(CloseSession{});
  actions.emplace_back(Log{.line = lost_.error.message() + "; connecting again"});
  if (!memory_.is_in_round()) return;
  workers_ = Workers::kFenced;
  if (memory_.resumed().state == NodeState::kSucceeded) return;
  broken({.round = memory_.round(), .cause = {.message = lost_.error.message()}, .is_fenced = true},
         actions);
}

// The port of the host refuses connections: its process is dead. The workers have their grace, but
// no longer than the lease.
FailoverActions Failover::host_died() { return is_over_ ? FailoverActions{} : give_up(false); }

FailoverActions Failover::give_up(bool is_fenced) {
  look_again_at_ = Time::max();
  host_ = HostState::kSearching;
  is_over_ = true;
  if (workers_ == Workers::kOnLease) workers_ = is_fenced ? Workers::kFenced : Workers::kEnding;
  FailoverActions actions;
  end_wait(actions);
  actions.emplace_back(CloseSession{});
  SessionLost lost = lost_;
  lost.is_fenced = is_fenced;
  actions.emplace_back(Deliver{lost});
  return actions;
}

}  // namespace ddprun::rendezvous
