// The one state machine of a job. It decides who is in, when a round starts, what breaks the round
// and how the job ends. Pure: no I/O and no clock. An event and `now` go in; what the nodes are
// told comes out. It does not know how a node is connected; it knows a node by its SessionId only.
//
//   waiting --(enough nodes)--> running --(all succeeded)--> ended
//       ^                            |
//       +---(failure, restart left)--+----(failure, none left; too few nodes remain)----> ended
//       +---(newcomers; departure)---+
//       |                            |
//       +---(some missing)---- recovering ----(all back)----> running
//
// A leader that takes over begins with the record of the last round, as recovering. Its nodes come
// back with resumed(). When all seats are back, the round runs on and no node was told anything. A
// host without a record may take the round from the first node that comes back (takes_rounds_over).
//
// Owned by Host, used on its thread only.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "rendezvous/core/admission.h"
#include "rendezvous/core/members.h"
#include "rendezvous/core/progress.h"
#include "rendezvous/core/recovery.h"
#include "rendezvous/core/rendezvous.h"
#include "rendezvous/core/restart_budget.h"
#include "rendezvous/core/round_policy.h"
#include "rendezvous/core/strikes.h"

namespace ddprun::rendezvous {

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

// The actions that Host must take now, in this order. First Host::before_publish prepares for the
// published round; no node may start workers before that. Then the nodes of that round are told.
// Then the deliveries are sent in their order. A node that got JobEnded or SessionLost gets nothing
// after it.
struct Outcome {
  std::optional<Publication> published;
  // A RoundPublished among them is said again, to a node that did not hear it.
  std::vector<Delivery> deliveries;
  std::vector<std::string> notes;  // warnings for the log
  // For those who watch the job, also where no node is left to be told.
  std::optional<RoundBroken> broken;
  std::optional<JobEnded> ended;

  // Nodes that come back before this is told: what they say is answered anew. They hear only their
  // last message of this, if there is one.
  std::vector<SessionId> withheld_from;
  bool hears(SessionId session, const HostMessage& message) const;
};

class Membership {
 public:
  // 1 <= policy.min_nodes <= policy.max_nodes <= kMaxNodes must hold. A record with a round: its
  // leader is gone, and its nodes are awaited: the round may go on. If the leader had a node in it,
  // that broke the round. A restart is spent, and the next round's number is the one after.
  explicit Membership(RoundPolicy policy, JobRecord record = {});

  // A session begins. It may be a node of the record's round, whose workers still run. No round
  // starts before it has joined or is lost. Without a record this does nothing.
  void opened(SessionId session) { recovery_.opened(session); }
  // `session` asks for a seat in the next round. It is a new node, or a node of the broken round
  // whose workers are gone. If all seats are taken, it waits as a spare until one is free. It gets
  // SessionLost if it cannot be in the job (its rank is taken, the job is over). It gets it, too,
  // if it asked already or is in a round. A round that it was in breaks.
  Outcome joined(SessionId session, const NodeSpec& spec, const PeerInfo& observed, Time now);
  // The node had a session before, with this leader or another, and says how far it is. `session`
  // is that session where this leader knows it. A node that is where this leader takes it to be is
  // told nothing. It is told again what it did not hear. If it is in another round or seat, it is
  // not believed. It is told that its round broke, and must end its workers before the next round
  // starts. It takes nobody's seat.
  Outcome resumed(SessionId session, const ResumeRequest& node, const PeerInfo& observed, Time now);
  // A worker of `round` failed on that node. The first failure of a round breaks it; later ones
  // change nothing.
  Outcome failed(SessionId session, std::int64_t round, const Failure& failure, Time now);
  // All workers of that node's `round` exited 0.
  Outcome succeeded(SessionId session, std::int64_t round, Time now);
  // The node goes for good. If min_nodes remain, the others go on without it and no restart is
  // spent; otherwise the job ends for all. Its workers may still run: the next round waits for its
  // session_lost(). A node that was in no round yet, or whose workers all succeeded, harms nobody.
  Outcome left(SessionId session, const Failure& reason, Time now);
  // As left(), because an operator wants it: the node is told to leave.
  Outcome drained(SessionId session, const Drain& drain, const Failure& reason, Time now);
  // As left(), of the node in whose process the rendezvous is. The job ends for all, since nobody
  // would be there to gather the others.
  Outcome host_left(SessionId session, const Failure& reason, Time now);
  // The node is unreachable for good; `how` says how we know, one clause for people ("its
  // connection ended"). This is the last event of a session, which is forgotten now. If all workers
  // of the node had succeeded, that success still counts. The loss of any other node of a running
  // round is a failure of that round.
  Outcome session_lost(SessionId session, const std::string& how, Time now);
  // Time passed. Call it at look_again_at().
  Outcome tick(Time now);

  // ---- an operator's words ----
  // The job ends for all nodes, unless it has ended already.
  Outcome stopped(const JobEnded& end, Time now);
  // Rounds have so many nodes from now on; the bounds must be as in the policy. A running round
  // that has more breaks, and no restart is spent; those that came last wait as spares. One that
  // has fewer goes on, and the next one waits for them.
  Outcome resized(int min_nodes, int max_nodes, Time now);
  // The node has no strikes any more, and does not sit out. False: it had none. tick() follows.
  bool forgive(const Member& member);
  bool forgive(const std::string& hostname);

  // When tick() can next change something. Time::max(): only an event can.
  Time look_again_at() const { return std::min(look_again_at_, pause_ends_at_); }

  // Returns the events that a waiting node waits for; nothing when the job is over.
  std::optional<WaitStatus> wait_status(Time now) const;

  enum class Phase { kRecovering, kWaiting, kRunning, kEnded };

  // For reports and tests.
  Phase phase() const { return phase_; }
  const RoundPolicy& policy() const { return policy_; }
  const Members& members() const { return members_; }
  const std::string& end_text() const { return end_text_; }
  std::int64_t round_number() const { return round_number_; }
  int restart_count() const { return budget_.restarts(); }
  const RestartRules& restart_rules() const { return budget_.rules(); }
  bool ended() const { return phase_ == Phase::kEnded; }
  bool recovers() const { return phase_ == Phase::kRecovering; }
  // The strikes of a node, and until when it sits out: Time::min(), it does not.
  double strikes_of(const Member& member, Time now) const;
  Time sits_out_until(const Member& member) const;

 private:
  bool speaks_of_this_round(const Member* member, std::int64_t round) const;

  void settle(Outcome& outcome, Time now);
  void go_on(Outcome& outcome, Time now);
  // ---- nodes that sit out (membership_strikes.cc) ----
  std::string strike_key(const Member& member) const;
  bool is_alone_on_its_host(const Member& member) const;
  bool has_strikes_of_its_host(const Member& member) const;
  void take_strikes(const NodeSpec& spec, Time now);
  void strike(const Member& member, const Failure& cause, Time now, Outcome& outcome);
  void strike(const std::string& node, const Failure& cause, Time now, Outcome& outcome);
  void mark_struck();
  void mark_if_struck(const Member& member);
  bool sits_out(const Member& member, Time now) const { return sits_out_until(member) > now; }
  int spares_that_play(Time now) const;
  void unseat_struck(Time now);
  void seat_struck(Time now);
  Member* next_spare(Time now);
  void put_last(std::vector<Member*>& arrivals, Time now) const;
  void note_players(Time now, Outcome& outcome);
  // The round of the node, where this host knows of none and may take it over.
  void take_round_over(const ResumeRequest& node);
  // The first event, where a round is inherited.
  void begin_recovery(Time now, Outcome& outcome);
  void look_who_is_back(Time now, Outcome& outcome);
  void look_whether_any_is_back(Time now);
  Outcome rejoined(Member& member, const ResumeRequest& node, const PeerInfo& observed, Time now);
  Outcome gave_up(Member& member, const ResumeRequest& node, Time now);
  std::optional<HostMessage> refusal(SessionId session, const ResumeRequest& node,
                                     const PeerInfo& observed) const;
  void returned(SessionId session, const ResumeRequest& node, const PeerInfo& observed, Time now,
                Outcome& outcome);
  void came_back(Member& member, const ResumeRequest& node, Time now, Outcome& outcome);
  void disbelieve(Member& member, const ResumeRequest& node, Outcome& outcome);
  void break_as_reported(const ResumeRequest& node, Time now, Outcome& outcome);
  void end_if_all_succeeded(Outcome& outcome);
  // A round has its nodes: it runs, or is about to.
  bool has_round() const { return phase_ == Phase::kRunning || phase_ == Phase::kRecovering; }
  // Nodes that wait for the next round with a seat, or that will be back for it.
  int seats_held() const {
    return members_.count(MemberState::kWaiting) + members_.count(MemberState::kStopping);
  }
  // Returns the message to a node that comes when the job is over. Its last round tells whether it
  // had a part.
  HostMessage end_for(std::int64_t round) const;
  Error over() const;
  void note_refusal(const JoinRefusal& refusal, const PeerInfo& observed, Time now,
                    Outcome& outcome);
  // Nodes whose old workers may still run, and that will be back.
  int stopping() const {
    return members_.count(MemberState::kStopping) + members_.count(MemberState::kDisbelieved) +
           recovery_.unknown();
  }
  void promote_spares(Time now);
  void update_times(Time now);
  void publish(Time now, Outcome& outcome);
  void break_round(const Failure& cause, Time now, Outcome& outcome);
  void stop_round(const RoundBroken& message, Outcome& outcome);
  void consider_resize(Time now, Outcome& outcome);
  void give_up(Outcome& outcome);
  Outcome lost_after_success(Member& member);
  void dismiss_all(const HostMessage& message, Outcome& outcome);
  void end_job(const JobEnded& end, Outcome& outcome);

  RoundPolicy policy_;
  const RoundPolicy given_;  // as at the beginning: what nodes were started with
  Phase phase_ = Phase::kWaiting;
  // session_lost() erases a member. One that is `gone` stays until its round is over.
  Members members_;
  std::int64_t round_number_ = 0;
  // A node knows a round of this number from an earlier leader whose record is gone. The next round
  // is newer.
  std::int64_t known_number_ = 0;
  RestartBudget budget_;
  ProgressWatch progress_;
  Strikes strikes_;
  std::set<SessionId> struck_;  // members with strikes
  Recovery recovery_;
  std::optional<Failure> leader_lost_;  // one loss too many, for the first node that comes back
  Round round_;                         // the last that this leader published
  std::vector<Seat> seats_;             // of it
  RoundBroken last_break_;              // for a node that did not hear it
  std::optional<JobEnded> end_;         // as told to the nodes; not if too few came in time
  std::string end_text_;                // how the job ended, for nodes that join after it
  std::optional<Time> waiting_since_;
  std::optional<Time> min_reached_at_;
  std::optional<Time> newcomer_since_;  // while a round runs that has room for a spare
  std::optional<Time> resized_at_;      // when a round was last broken for newcomers
  Time note_refusal_at_{};              // a refusal may be noted again
  Time look_again_at_ = Time::max();
  Time pause_ends_at_ = Time::max();  // a node that sits out may come back then
  Reason reason_ = Reason::kNobody;   // why the next round has not started yet
};

}  // namespace ddprun::rendezvous
