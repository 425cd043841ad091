// The host of a simulated job: the real Membership and the real leases, and the invariants that can
// be seen where the decisions are made.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "rendezvous/keep_alive.h"
#include "rendezvous/membership.h"
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

  SimHost(VirtualTime& time, const JobPlan& plan);

  // ---- what arrives from a node ----
  void opened(SessionId session, Ears ears);
  void joined(SessionId session, const rendezvous::NodeSpec& spec);
  void failed(SessionId session, std::int64_t round, const rendezvous::Failure& failure);
  void succeeded(SessionId session, std::int64_t round);
  void left(SessionId session);
  void beat(SessionId session, milliseconds stamp);
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
    bool watched = false;
    bool told_last = false;
    bool left = false;
  };

  Session* find(SessionId session);
  Session* heard(SessionId session);
  void perform(const rendezvous::Outcome& outcome);
  void publish(const rendezvous::Publication& published);
  void check_seats_are_kept(const std::vector<SessionId>& sessions);
  void check_end(const rendezvous::HostMessage& message);
  void check_resize(const rendezvous::RoundBroken& broken);
  bool round_runs() const;
  void check_room();
  void check_waits() const;
  void check_stale_reports_change_nothing(SessionId session);
  void look_again();
  void look_for_silence(SessionId session);
  int could_be_in() const;

  VirtualTime& time_;
  const JobPlan plan_;
  rendezvous::Membership membership_;
  std::map<SessionId, Session> sessions_;
  std::vector<SessionId> seated_;   // in the last round
  std::set<std::int64_t> resized_;  // rounds that were broken because nodes came or left
  std::set<std::int64_t> failed_;   // rounds that a failure broke
  std::int64_t last_round_ = 0;
  bool running_ = false;            // a round began, and no node was told that it broke
  int succeeded_ = 0;               // nodes of it whose workers all exited 0
  Time grown_at_{};                 // when a round was last broken for newcomers
  std::optional<Time> room_since_;  // a round runs, and a node waits that could be in it
  Time timer_at_{};
};

}  // namespace ddprun::sim
