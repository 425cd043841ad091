// A node whose session with the host ends: it finds the host again, or follows the next one. Its
// workers go on meanwhile if they may. Pure: an event and `now` go in, actions come out. It knows
// no connection and no election: failover_session.h and its two shells do.
//
// Two facets. The first one says what there is with the host:
//
//   searching -> connecting -> following       connecting -(failed)-> searching
//   searching -(elected)-> leading             following, leading -(lost)-> searching
//   over: nobody is looked for any more
//
// The workers of a round:
//
//   none -> running -(lost)-> on lease -(back in time)-> running
//                       |         +-(the lease ends)-> fenced
//                       +-> ending -(the lease ends)-> fenced -(they are gone)-> none
//
// Two policies. With kSameHost nobody follows the host (c10d, static, a lone ddprund): the node
// connects again until the lease ends. Then it comes back as a node without workers, for
// `rejoin_limit`. With kElectedHost the election says who is next, this node perhaps; it knows how
// long to look.
//
// Owned by FailoverSession, used on its thread only.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "rendezvous/core/recovery.h"
#include "rendezvous/core/rendezvous.h"
#include "rendezvous/core/session_memory.h"

namespace ddprun::rendezvous {

enum class HostPolicy { kSameHost, kElectedHost };

struct FailoverRules {
  HostPolicy policy = HostPolicy::kSameHost;
  // kElectedHost: the workers go on without a leader while the lease of the one before holds.
  bool keeps_workers = true;
  // kSameHost: how long the node still comes back when its lease has ended.
  std::chrono::milliseconds rejoin_limit{0};
};

// ---- actions: what the caller must do ----

// ---- with sessions; the caller has one at most, and a fenced one ----

// Open a session with the host, or with the leader of leader_found(). Its workers may live until
// workers_until(). Say admitted() when it let us in.
struct OpenSession {};
// End the session, if there is one.
struct CloseSession {};
// End the session without a word: another is the leader now.
struct AbandonSession {};
// Keep the session aside. The host must not hear of its end before our workers are gone.
struct FenceSession {};
// They are gone: end the session that was kept.
struct EndFencedSession {};
// Say to the session what the node has just said.
struct PassOn {};
// Call replay_to() with the session.
struct Replay {};

// ---- for the node ----

// Give the message to the agent.
struct Deliver {
  HostMessage message;
};
// The workers may live so long unless more is heard; zero: there are none.
struct LimitWorkers {
  Time until{};
};
// Tell of the wait for a host from now on, with wait_line(); a wait before it ends.
struct BeginWait {};
struct EndWait {};
struct Log {
  bool is_warning = true;
  std::string line;
};

// ---- kSameHost ----

// Find out whether the host's process is dead, and say host_died() then.
struct ProbeHost {};
struct StopProbing {};

// ---- kElectedHost ----

// Look for the next leader: leader_found(), elected(), job_over(), or gave_up().
struct LookForLeader {
  bool was_closed = false;  // as in SessionLost
};
// The leader has let this node in.
struct AcceptLeader {};
// Record the job: etcd has forgotten it.
struct RecordJob {
  JobRecord record;
};
// Host the rendezvous here, and open a session with it.
struct HostHere {
  JobRecord record;
};
// Tell the nodes of the rendezvous here why it ends.
struct DismissNodes {
  Error why;
};
// End the rendezvous here and stop listening. No session of it is left.
struct StopHosting {};
// This node must not lead any more; it still looks for a leader.
struct Withdraw {};
// A round was published to this node.
struct RoundBegins {};
// The job is over here: nobody is elected any more.
struct EndJob {
  bool succeeded = false;
};

using FailoverAction =
    std::variant<OpenSession, CloseSession, AbandonSession, FenceSession, EndFencedSession, PassOn,
                 Replay, Deliver, LimitWorkers, BeginWait, EndWait, Log, ProbeHost, StopProbing,
                 LookForLeader, AcceptLeader, RecordJob, HostHere, DismissNodes, StopHosting,
                 Withdraw, RoundBegins, EndJob>;
using FailoverActions = std::vector<FailoverAction>;

class Failover {
 public:
  enum class HostState {
    kSearching,   // there is no session
    kConnecting,  // one is being opened
    kFollowing,   // the host let this node in
    kLeading,     // the host is here
    kOver,        // nobody is looked for any more
  };
  enum class Workers {
    kNone,     // of no round, or the node asked for the next one
    kRunning,  // there is a host; it may have broken the round
    kOnLease,  // there is none, and they go on until the lease ends
    kEnding,   // the round broke; they may end until then
    kFenced,   // the lease has ended: they must end at once
  };

  explicit Failover(FailoverRules rules) : rules_(rules) {}

  // After each function that returns actions, set a timer for look_again_at(), which calls
  // time_passed(). Then perform the actions in their order. A message to the agent may bring the
  // next event before the rest of them.

  // Call it once.
  FailoverActions start();

  // ---- what the node says: as in Session ----
  FailoverActions joined(const NodeSpec& node);
  FailoverActions failed(std::int64_t round, const Failure& failure);
  FailoverActions succeeded(std::int64_t round);
  FailoverActions left(const Failure& reason);
  FailoverActions gone();

  // ---- what the host says ----
  // The session let this node in.
  FailoverActions admitted(Time now);
  FailoverActions message(const HostMessage& message, Time now);

  // ---- kSameHost ----
  FailoverActions host_died();

  // ---- kElectedHost: what the election brings ----
  // `lease_ends`: of the session of now, if there is one.
  FailoverActions leader_found(const std::string& hostname, Time lease_ends);
  FailoverActions elected(JobRecord record);
  // This process leads no more. `was_suspended`: as in StepDown.
  FailoverActions lost_leadership(const std::string& why, bool was_suspended, Time now);
  // The job is over, and no leader is there to say so.
  FailoverActions job_over(bool succeeded);
  // There is no way to a leader.
  FailoverActions gave_up(const Error& error);

  FailoverActions time_passed(Time now);
  Time look_again_at() const { return look_again_at_; }

  // The first words of a session that let this node in.
  void replay_to(Session& session) { memory_.replay_to(session); }

  HostState host() const { return is_over_ ? HostState::kOver : host_; }
  Workers workers() const { return workers_; }
  const SessionMemory& memory() const { return memory_; }
  bool is_admitted() const {
    return host_ == HostState::kFollowing || host_ == HostState::kLeading;
  }
  // Returns whether what the node says goes to the session. The first one with kSameHost has it in
  // its queue until the host lets the node in.
  bool takes_words() const { return is_admitted() || (is_same_host() && !is_lost()); }
  // Without a host. Nothing if the node has no workers, or had no host yet.
  std::optional<Time> workers_until() const;
  // Says why the last try to have a host ended. Empty if none did since the host let this node in.
  const std::string& last_loss() const { return last_loss_; }
  // kSameHost, without a host: when the node gives up.
  Time gives_up_at() const;
  // `why`: there is no host. Empty if nothing is to be told.
  std::string wait_line(std::chrono::seconds waited, const std::string& why, Time now) const;

 private:
  bool is_same_host() const { return rules_.policy == HostPolicy::kSameHost; }
  FailoverActions pass_on() const;
  void end_wait(FailoverActions& actions);
  void break_round(const SessionLost& lost, FailoverActions& actions);
  void broken(const RoundBroken& message, FailoverActions& actions);

  // ---- failover_same_host.cc ----
  bool is_lost() const { return has_followed_ && host_ != HostState::kFollowing; }
  bool has_lease_ended() const { return rejoin_until_ != Time{}; }
  Time limit() const { return has_lease_ended() ? rejoin_until_ : workers_until_; }
  FailoverActions admitted_again(Time now);
  FailoverActions same_host_message(const HostMessage& message, Time now);
  FailoverActions host_lost(const SessionLost& lost, Time now);
  FailoverActions look_again(Time now);
  void lease_ended(Time now, FailoverActions& actions);
  FailoverActions give_up(bool is_fenced);

  // ---- failover_elected.cc ----
  FailoverActions admitted_by_leader();
  FailoverActions elected_message(const HostMessage& message, Time now);
  void change_leader(const std::string& next, Time lease_ends, FailoverActions& actions);
  void remember(JobRecord& record, FailoverActions& actions) const;
  void ask(SessionLost& lost, Time now);
  bool is_leader_lost(const SessionLost& lost, Time now);
  FailoverActions leader_lost(SessionLost lost, Time now);
  FailoverActions leadership_lost(SessionLost lost, Time now);
  FailoverActions try_failed(const SessionLost& lost, Time now);
  void leave_session(bool is_fenced, FailoverActions& actions);
  void hold_lease(SessionLost& lost, Time now, FailoverActions& actions);
  void look_for_next(const SessionLost& lost, Time now, FailoverActions& actions);
  FailoverActions end(bool succeeded, const HostMessage& message);

  const FailoverRules rules_;
  SessionMemory memory_;
  HostState host_ = HostState::kSearching;
  bool is_over_ = false;
  Workers workers_ = Workers::kNone;
  // The workers may live so long without a host. The past: they end at once. Zero: there are none,
  // or there is a host.
  Time workers_until_{};
  Time look_again_at_ = Time::max();
  bool waits_ = false;  // and tells of it
  SessionLost lost_;    // the host before, whose lease counts
  std::string last_loss_;

  // ---- kSameHost ----
  bool has_followed_ = false;
  Time admitted_at_{};
  Time rejoin_until_{};  // zero: the lease has not ended

  // ---- kElectedHost ----
  std::string leader_;  // host name; empty: none was found yet
  // The leader before said itself that it leads no more: its node comes back as any other.
  bool leader_lives_ = false;
  // This node was suspended past its lease. Until then it may not know that the others go on
  // without it.
  Time asks_until_{};
  // Since when nobody at the leader's address has proved that it knows the job's token.
  std::optional<Time> unproven_since_;
};

}  // namespace ddprun::rendezvous
