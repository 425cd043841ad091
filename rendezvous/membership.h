// The one state machine of a job: who is in, when a round starts, what breaks it, how the job ends.
// Pure: no I/O, no clock; an event and `now` go in, deliveries to the nodes come out. It does not know
// how a node is connected: a node is a SessionId that the shell (host.h) made up and never uses twice.
//
//   gathering --(enough nodes)--> running --(all succeeded)--> ended
//       ^                            |
//       +---(failure, restart left)--+----(failure, none left; a node leaves for good)----> ended
//
// Any one thread; owned by Host.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "rendezvous/rendezvous.h"
#include "rendezvous/restart_budget.h"
#include "rendezvous/seating.h"

namespace ddprun::rendezvous {

// Workers of one node: far above any machine's accelerators, low enough that a world size never
// overflows an int.
inline constexpr int kMaxLocalWorldSize = 4096;

struct RoundPolicy {
  int min_nodes = 1;
  int max_nodes = 1;
  // From the first node that waits for a round until the nodes that wait give up.
  std::chrono::nanoseconds join_timeout = std::chrono::seconds(600);
  // How long a round with min_nodes still waits for more. Counts once from min_nodes on, not anew
  // per late joiner.
  std::chrono::nanoseconds last_call = std::chrono::seconds(30);
  std::uint64_t jitter_seed = 0;  // of the waits between restarts
};

// What decide() looks at.
struct Roster {
  int waiting = 0;                // nodes that asked for the next round and may have a seat in it
  int returning = 0;              // nodes of the broken round that are still stopping their workers
  Time gathering_since;           // when the first of `waiting` came; meaningless if there is none
  Time min_reached_at;            // when `waiting` last reached min_nodes; meaningless below
  Time not_before = Time::min();  // the wait before a restart ends
};

enum class Choice { kWait, kClose, kGiveUp };
enum class Reason {
  kNobody,
  kTooFew,
  kReturning,
  kLastCall,
  kFull,
  kLastCallOver,
  kJoinTimeout,
  kBackoff
};
struct Decision {
  Choice choice;
  Reason reason;
  Time look_again_at;  // Time::max(): only an event can change the answer
};

// Whether the round may start now.
Decision decide(const Roster& roster, const RoundPolicy& policy, Time now);

// One piece of news for one node.
struct Delivery {
  SessionId to;
  HostMessage message;
};

// A round to start: sessions[i] is told RoundPublished{round, i}. One copy, since its size grows with
// the nodes.
struct Publication {
  Round round;
  std::vector<SessionId> sessions;
};

// What the shell must now do: first let the round's host prepare for what is published (before any
// node starts workers for it), then tell its nodes, then send the deliveries, in order. A node that
// got JobEnded or SessionLost gets nothing after it.
struct Outcome {
  std::optional<Publication> published;
  std::vector<Delivery> deliveries;  // no RoundPublished among them
  std::vector<std::string> notes;    // lines worth a warning in the log
};

class Membership {
 public:
  // REQUIRES 1 <= policy.min_nodes <= policy.max_nodes <= kMaxNodes.
  explicit Membership(RoundPolicy policy);

  // `session` asks for a seat in the next round: a new node, or one of the broken round whose workers
  // are gone. A node too many waits as a spare until a seat is free. A node that cannot be (its
  // rank is taken, the job is over) gets SessionLost.
  Outcome joined(SessionId session, const NodeSpec& spec, const Observed& observed, Time now);
  // A worker of `round` failed on that node. The first failure of a round breaks it; the rest
  // change nothing.
  Outcome failed(SessionId session, std::int64_t round, const Failure& failure, Time now);
  // All workers of that node's `round` exited 0.
  Outcome succeeded(SessionId session, std::int64_t round, Time now);
  // The node goes and takes the job with it; a spare goes alone.
  Outcome left(SessionId session, const Failure& reason, Time now);
  // The node is unreachable, for good: the last event of a session, and the one that makes us forget
  // it. A node whose workers had all succeeded keeps that success; the loss of any other node of a
  // running round is a failure of it.
  Outcome session_lost(SessionId session, Time now);
  // Time passed; call at look_again_at().
  Outcome tick(Time now);

  // When tick() can next change something; Time::max(): never by itself.
  Time look_again_at() const { return look_again_at_; }

  // For reports and tests.
  std::int64_t round_number() const { return round_number_; }
  int restart_count() const { return budget_.restarts(); }
  bool ended() const { return phase_ == Phase::kEnded; }

 private:
  enum class Phase { kGathering, kRunning, kEnded };
  enum class Standing {
    kSpare,      // one too many: waits until a seat is free
    kWaiting,    // holds a seat in the next round
    kRunning,    // in the round
    kSucceeded,  // in the round, all workers exited 0
    kStopping,   // its round broke; has not asked for the next one yet
    kDismissed,  // was told the end; nothing it says counts any more
  };
  struct Member {
    Entrant entrant;
    Standing standing = Standing::kSpare;
    std::uint64_t arrival = 0;  // order of first joins, kept over restarts
    int seat = -1;              // in the last round it was in
    bool gone = false;          // its session was lost after its success

    bool in_round() const {
      return standing == Standing::kRunning || standing == Standing::kSucceeded;
    }
    bool listens() const { return standing != Standing::kDismissed && !gone; }
  };

  Member* find(SessionId session);
  bool speaks_of_this_round(const Member* member, std::int64_t round) const;
  int count(Standing standing) const;
  std::vector<SessionId> by_arrival(Standing standing) const;
  std::optional<Error> objection(SessionId session, const NodeSpec& spec) const;

  void settle(Outcome& outcome, Time now);
  void promote_spares();
  void update_times(Time now);
  void publish(Time now, Outcome& outcome);
  void set_budget(const std::vector<Entrant>& entrants, Time now, Outcome& outcome);
  void break_round(const Failure& cause, Time now, Outcome& outcome);
  void give_up(Outcome& outcome);
  void end_job(const JobEnded& end, Outcome& outcome);

  const RoundPolicy policy_;
  Phase phase_ = Phase::kGathering;
  // Erased by session_lost(); those `gone` when their round is over.
  std::map<SessionId, Member> members_;
  std::uint64_t arrivals_ = 0;
  std::int64_t round_number_ = 0;
  RestartBudget budget_;
  std::string end_text_;  // once ended: how, for those that come late
  std::optional<Time> gathering_since_;
  std::optional<Time> min_reached_at_;
  Time look_again_at_ = Time::max();
};

}  // namespace ddprun::rendezvous
