// The host of a simulated job. It has the real Membership and the real leases, and checks the
// invariants at the place of the decisions. It may be one of several that lead in turn. Then it
// begins with a record, and each round is recorded before it is told.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "rendezvous/core/keep_alive.h"
#include "rendezvous/core/membership.h"
#include "tests/sim/virtual_time.h"

namespace ddprun::sim {

using rendezvous::SessionId;

struct JobPlan {
  rendezvous::RoundPolicy policy;
  int budget = 0;  // restarts
  rendezvous::KeepAlive keep_alive;
};

class SimHost {
 public:
  // How a node hears: set by the node that opens a session. The answer travels as the network lets
  // it.
  struct Ears {
    std::function<void(const rendezvous::HostMessage&)> message;
    std::function<void(milliseconds stamp, const rendezvous::Lease&)> lease;
    std::function<void()> closed;  // the host broke the connection off
  };

  // The callbacks to the process around it, where it is one of several.
  struct Callbacks {
    // Runs `act` when the process does not stand still.
    std::function<void(std::function<void()> act)> when_awake;
    std::function<void(rendezvous::JobRecord, std::function<void()> recorded)> record_round;
    std::function<bool()> may_grant;  // whether it may promise a node anything
    std::function<void(bool succeeded, std::function<void()> recorded)> record_end;
    std::function<void(std::int64_t round)> tells;
    std::function<void(bool succeeded)> ended;
  };

  SimHost(VirtualTime& time, const JobPlan& plan, rendezvous::JobRecord record = {},
          Clock clock = {Time{}, 1}, Callbacks callbacks = {});

  // Handles a message that came over a connection, when the process runs.
  void arrive(std::function<void()> act);
  // The process ends, or leads no more. `is_told`: the nodes notice.
  void end(bool is_told);
  bool is_over() const { return over_; }

  // ---- what arrives from a node ----
  void opened(SessionId session, Ears ears);
  void joined(SessionId session, const rendezvous::NodeSpec& spec);
  // If the node has a session here, that one goes on over this connection.
  void resumed(SessionId session, const rendezvous::ResumeRequest& node);
  // The connection ended, and the process of the node lives or does not answer: it may come back.
  void broke(SessionId session);
  void failed(SessionId session, std::int64_t round, const rendezvous::Failure& failure);
  void succeeded(SessionId session, std::int64_t round);
  void left(SessionId session);
  void heartbeat(SessionId session, milliseconds stamp);
  // Gone after left(), or the connection broke because the process died.
  void ended(SessionId session);

  // From now on the host looks whether the node is silent; before, it is known not to be.
  void watch(SessionId session);

  const rendezvous::Membership& membership() const { return membership_; }
  // Rounds that were published.
  std::int64_t last_round() const { return last_round_; }

 private:
  struct Session {
    Ears ears;
    rendezvous::NodeSpec spec;
    rendezvous::Silence silence;
    SessionId member = 0;         // what the membership knows it as
    std::int64_t connection = 0;  // as ResumeRequest has it
    bool has_workers = false;     // it said so when it came back
    bool is_cut = false;          // without a connection
    bool watched = false;
    bool got_last = false;
    bool left = false;
  };

  Session* find(SessionId session);
  Session* holder(SessionId member);
  Time now() const { return clock_.local(time_.now()); }
  bool is_overtaken(SessionId session, const rendezvous::ResumeRequest& node) const;
  void move(SessionId to, const rendezvous::ResumeRequest& node);
  Session* hear(SessionId session);
  void perform(rendezvous::Outcome outcome);
  void tell(const rendezvous::Outcome& outcome);
  bool is_recorded(const rendezvous::Outcome& outcome) const;
  void record(const rendezvous::Outcome& outcome);
  void recorded();
  void publish(const rendezvous::Outcome& outcome);
  void check_ranks(const rendezvous::Publication& published);
  void check_seats_are_kept(const std::vector<SessionId>& sessions);
  void check_failure(const rendezvous::Outcome& outcome) const;
  void check_end(const rendezvous::HostMessage& message);
  void check_resize(const rendezvous::RoundBroken& broken);
  void check_growth(const rendezvous::Outcome& outcome);
  bool round_runs() const;
  void check_room();
  void check_waits() const;
  void check_seat_is_given_once(const rendezvous::ResumeRequest& node);
  void check_stale_reports_change_nothing(SessionId session);
  void look_again();
  void look_for_silence(SessionId session);
  int could_be_in() const;
  std::string sessions_text() const;

  VirtualTime& time_;
  const JobPlan plan_;
  const Clock clock_;
  const Callbacks callbacks_;
  rendezvous::Membership membership_;
  bool over_ = false;
  bool decides_ = true;  // it leads, as far as it knows
  const bool began_with_a_round_;
  std::deque<rendezvous::Outcome> unsent_;  // the first one is being recorded
  std::map<SessionId, Session> sessions_;   // by connection
  std::set<SessionId> early_watches_;       // watched before they were opened: that was under way
  std::vector<SessionId> seated_;           // in the last round
  std::set<std::int64_t> resized_;          // rounds that were broken because nodes came or left
  std::set<std::int64_t> failed_;           // rounds that a failure broke
  std::int64_t last_round_ = 0;
  bool running_ = false;  // a round began, and no node was told that it broke
  bool is_end_sent_ = false;
  bool succeeded_ = false;          // the job
  std::set<SessionId> done_;        // nodes of it whose workers all exited 0
  Time grown_at_{};                 // when a round was last broken for newcomers
  std::optional<Time> room_since_;  // a round runs, and a node waits that could be in it
  Time timer_at_{};
};

}  // namespace ddprun::sim
