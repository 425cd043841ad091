// The one state machine of a job: it decides who is in, when a round starts, what breaks the round
// and how the job ends. Pure: no I/O and no clock. An event and `now` go in; what the nodes are
// told comes out. It does not know how a node is connected; it knows a node by its SessionId only.
//
//   gathering --(enough nodes)--> running --(all succeeded)--> ended
//       ^                            |
//       +---(failure, restart left)--+----(failure, none left; a node leaves for good)----> ended
//
// Owned by Host, used on its thread only.
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

// The most workers of one node. No machine has so many accelerators. And a world size, at most this
// times kMaxNodes, always fits into an int.
inline constexpr int kMaxLocalWorldSize = 4096;

struct RoundPolicy {
  int min_nodes = 1;
  int max_nodes = 1;
  // How long nodes wait for a round. The time starts with the first node that waits. At its end the
  // round starts if min_nodes are there; otherwise the job ends.
  std::chrono::nanoseconds join_timeout = std::chrono::seconds(600);
  // How long a round that has min_nodes still waits for more nodes. The time starts when min_nodes
  // is reached. A late joiner does not start it again: otherwise nodes that come one by one could
  // delay the round up to join_timeout.
  std::chrono::nanoseconds last_call = std::chrono::seconds(30);
  std::uint64_t jitter_seed = 0;  // for the random part of the waits between restarts
};

// What decide() looks at.
struct Roster {
  int waiting = 0;                // nodes that asked for the next round and hold a seat in it
  int returning = 0;              // nodes of the broken round that still stop their workers
  Time gathering_since;           // since then at least one node waits; valid only if one does
  Time min_reached_at;            // when `waiting` last reached min_nodes; valid only from there on
  Time not_before = Time::min();  // no round may start earlier: the wait before a restart
};

// kWait: for an event or for a time. kClose: the round starts. kGiveUp: too few came, the job ends.
enum class Choice { kWait, kClose, kGiveUp };
// Why decide() chose so. Only tests read it.
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
  Time look_again_at;  // for kWait: decide again then; Time::max(): only an event can change it
};

// Says whether the round may start at `now`.
Decision decide(const Roster& roster, const RoundPolicy& policy, Time now);

// One message and the node that gets it.
struct Delivery {
  SessionId to;
  HostMessage message;
};

// A round that starts: sessions[i] gets RoundPublished{round, i}. The round is held once and not
// once per node, because its size grows with the number of nodes.
struct Publication {
  Round round;
  std::vector<SessionId> sessions;
};

// What Host must do now, in this order. First Host::before_publish prepares for the published
// round; no node may start workers before that. Then the nodes of that round are told. Then the
// deliveries are sent in their order. A node that got JobEnded or SessionLost gets nothing after
// it.
struct Outcome {
  std::optional<Publication> published;
  std::vector<Delivery> deliveries;  // no RoundPublished among them
  std::vector<std::string> notes;    // warnings for the log
};

class Membership {
 public:
  // 1 <= policy.min_nodes <= policy.max_nodes <= kMaxNodes must hold.
  explicit Membership(RoundPolicy policy);

  // `session` asks for a seat in the next round. It is a new node, or a node of the broken round
  // whose workers are gone. If all seats are taken, it waits as a spare until one is free. It gets
  // SessionLost if it cannot be in the job (its rank is taken, the job is over), or if it asked
  // already or is in a round; a round that it was in breaks.
  Outcome joined(SessionId session, const NodeSpec& spec, const Observed& observed, Time now);
  // A worker of `round` failed on that node. The first failure of a round breaks it; later ones
  // change nothing.
  Outcome failed(SessionId session, std::int64_t round, const Failure& failure, Time now);
  // All workers of that node's `round` exited 0.
  Outcome succeeded(SessionId session, std::int64_t round, Time now);
  // The node goes and ends the job for all nodes. A spare goes alone.
  Outcome left(SessionId session, const Failure& reason, Time now);
  // The node is unreachable for good. This is the last event of a session, which is forgotten now.
  // If all workers of the node had succeeded, that success still counts. The loss of any other node
  // of a running round is a failure of that round.
  Outcome session_lost(SessionId session, Time now);
  // Time passed. Call it at look_again_at().
  Outcome tick(Time now);

  // When tick() can next change something. Time::max(): only an event can.
  Time look_again_at() const { return look_again_at_; }

  // For reports and tests.
  std::int64_t round_number() const { return round_number_; }
  int restart_count() const { return budget_.restarts(); }
  bool ended() const { return phase_ == Phase::kEnded; }

 private:
  enum class Phase { kGathering, kRunning, kEnded };
  enum class Standing {
    kSpare,      // all seats are taken: waits until one is free
    kWaiting,    // holds a seat in the next round
    kRunning,    // in the round
    kSucceeded,  // in the round, all workers exited 0
    kStopping,   // its round broke; has not asked for the next one yet
    kDismissed,  // got its last message; nothing it says counts any more
  };
  struct Member {
    Entrant entrant;
    Standing standing = Standing::kSpare;
    std::uint64_t arrival = 0;  // order of the first joins; a restart does not change it
    int seat = -1;              // in the last round it was in
    bool gone = false;          // its session was lost after its success

    bool in_round() const {
      return standing == Standing::kRunning || standing == Standing::kSucceeded;
    }
    // Whether a message may still be sent to it.
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
  // session_lost() erases a member. One that is `gone` stays until its round is over.
  std::map<SessionId, Member> members_;
  std::uint64_t arrivals_ = 0;
  std::int64_t round_number_ = 0;
  RestartBudget budget_;
  std::string end_text_;  // how the job ended, for nodes that join after it
  std::optional<Time> gathering_since_;
  std::optional<Time> min_reached_at_;
  Time look_again_at_ = Time::max();
};

}  // namespace ddprun::rendezvous
