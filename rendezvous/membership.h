// The one state machine of a job: it decides who is in, when a round starts, what breaks the round
// and how the job ends. Pure: no I/O and no clock. An event and `now` go in; what the nodes are
// told comes out. It does not know how a node is connected; it knows a node by its SessionId only.
//
//   gathering --(enough nodes)--> running --(all succeeded)--> ended
//       ^                            |
//       +---(failure, restart left)--+----(failure, none left; too few nodes remain)----> ended
//       +---(newcomers; departure)---+
//
// Owned by Host, used on its thread only.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "rendezvous/members.h"
#include "rendezvous/rendezvous.h"
#include "rendezvous/restart_budget.h"
#include "rendezvous/round_policy.h"

namespace ddprun::rendezvous {

// So many missing ranks are named at most.
inline constexpr std::size_t kMissingShown = 8;
// In a larger job nobody looks for them: it would cost too much for each node that is told.
inline constexpr int kMissingSearched = 512;

// What outlives the process of the host, where another one may lead on: etcd keeps it
// (rendezvous/election). It is written before the nodes of a round are told of it.
struct JobRecord {
  std::int64_t round = 0;  // the last that was published; 0: none was
  int restarts = 0;        // spent so far
  RestartRules rules;      // of that round
  int others = 0;          // its nodes without that of the leader
  std::string leader;      // host name, for people

  bool operator==(const JobRecord&) const = default;
};

// One message and the node that gets it.
struct Delivery {
  SessionId to;
  HostMessage message;
};

// A round that starts: sessions[i] gets RoundPublished{round, seats[i]}.
struct Publication {
  Round round;
  std::vector<Seat> seats;
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
  // A record with a round: its leader is gone, and that broke the round. The next round's number is
  // the one after, a restart is spent, and the nodes of before are awaited.
  explicit Membership(RoundPolicy policy, JobRecord record = {});

  // A session begins. It may be a node of the record's round, whose workers still run: no round starts
  // before it has joined or is lost. Without a record this does nothing.
  void opened(SessionId session) {
    if (awaits_returning_) unjoined_.insert(session);
  }
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
  // The node goes for good. If min_nodes remain, the others go on without it and no restart is
  // spent; otherwise the job ends for all. Its workers may still run: the next round waits for its
  // session_lost(). A node that was in no round yet, or whose workers all succeeded, harms nobody.
  Outcome left(SessionId session, const Failure& reason, Time now);
  // As left(), of the node in whose process the rendezvous is: the job ends for all, since nobody
  // would be there to gather the others.
  Outcome host_left(SessionId session, const Failure& reason, Time now);
  // The node is unreachable for good; `how` says how we know, one clause for people ("its connection
  // ended"). This is the last event of a session, which is forgotten now.
  // If all workers of the node had succeeded, that success still counts. The loss of any other node
  // of a running round is a failure of that round.
  Outcome session_lost(SessionId session, const std::string& how, Time now);
  // Time passed. Call it at look_again_at().
  Outcome tick(Time now);

  // When tick() can next change something. Time::max(): only an event can.
  Time look_again_at() const { return look_again_at_; }

  // What a node that waits, waits for; nothing when the job is over.
  std::optional<Gathering> gathering(Time now) const;

  // For reports and tests.
  std::int64_t round_number() const { return round_number_; }
  int restart_count() const { return budget_.restarts(); }
  const RestartRules& restart_rules() const { return budget_.rules(); }
  bool ended() const { return phase_ == Phase::kEnded; }

 private:
  enum class Phase { kGathering, kRunning, kEnded };
  bool speaks_of_this_round(const Member* member, std::int64_t round) const;

  void settle(Outcome& outcome, Time now);
  void resume(const JobRecord& record, Time now, Outcome& outcome);
  // Nodes whose old workers may still run, and that will be back.
  int stopping() const {
    return members_.count(Standing::kStopping) + static_cast<int>(unjoined_.size());
  }
  void promote_spares();
  void update_times(Time now);
  void publish(Time now, Outcome& outcome);
  void set_budget(const std::vector<const Entrant*>& entrants, Time now, Outcome& outcome);
  void break_round(const Failure& cause, Time now, Outcome& outcome);
  void stop_round(const RoundBroken& message, Outcome& outcome);
  void consider_resize(Time now, Outcome& outcome);
  std::string missing_ranks() const;
  void give_up(Outcome& outcome);
  Outcome lost_after_success(Member& member);
  void dismiss_all(const HostMessage& message, Outcome& outcome);
  void end_job(const JobEnded& end, Outcome& outcome);

  const RoundPolicy policy_;
  Phase phase_ = Phase::kGathering;
  // session_lost() erases a member. One that is `gone` stays until its round is over.
  Members members_;
  std::int64_t round_number_ = 0;
  RestartBudget budget_;
  std::optional<JobRecord> resumed_;  // until the first node joins
  bool awaits_returning_ = false;     // until the first round of this leader
  std::set<SessionId> unjoined_;      // while it awaits them: sessions that did not join yet
  int awaited_ = 0;                   // nodes of the round that the record tells of
  Time awaited_until_ = Time::min();
  std::string end_text_;  // how the job ended, for nodes that join after it
  std::optional<Time> gathering_since_;
  std::optional<Time> min_reached_at_;
  std::optional<Time> newcomer_since_;  // while a round runs that has room for a spare
  std::optional<Time> resized_at_;      // when a round was last broken for newcomers
  Time look_again_at_ = Time::max();
  Reason reason_ = Reason::kNobody;  // why the next round has not started yet
};

}  // namespace ddprun::rendezvous
