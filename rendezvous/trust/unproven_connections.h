// Decides which unproven connections gRPC gets, and when. Over these nobody has proved yet that it
// knows the token. Their cost is bounded: so many are served at a time, and so many a second may
// end without proof. Nodes that prove themselves cost nothing of that. While others wait each of
// them makes room for one more. So 10,000 need not come 256 by 256. A connection that ends without
// a proof takes such room back, and so does quiet. Beyond the bounds connections wait. Each address
// has its turn, and in each address the newest and the oldest by turns. Those in between may be one
// attacker's. While others wait, one that does not prove itself in time is cut. Pure: events and
// `now` go in, what must be done comes out. Owned by Intake.
#pragma once

#include <chrono>
#include <cstddef>
#include <deque>
#include <functional>
#include <list>
#include <map>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace ddprun::rendezvous {

struct UnprovenLimits {
  // At a time. gRPC has some 10 KiB for a connection in clear, and some 40 KiB with TLS.
  std::size_t served = 1024;
  std::size_t waiting = 10'000;
  double failures_at_once = 1024;  // connections that end without a proof
  double failures_per_second = 128;
  // The most that proofs add to both, and the loss in a second in which nobody waits.
  double earned = 1024;
  double earned_lost_per_second = 1024;
  // A handshake costs the host several times what a call costs.
  double tls_cost = 4;
  // While others wait, a connection has so much time for its proof. It has up to four times that if
  // proofs have made room: the host is busy with nodes then.
  std::chrono::milliseconds turn{2000};
};

class UnprovenConnections {
 public:
  using Time = std::chrono::steady_clock::time_point;
  using Id = int;  // the descriptor: no two that are open have the same
  enum class Wire { kClear, kTls };

  explicit UnprovenConnections(UnprovenLimits limits)
      : limits_(limits), failures_left_(limits.failures_at_once) {}

  // It waits until next() names it. One of before with this id has ended.
  void arrived(Id id, const std::string& address, Wire wire);
  // The connection to serve now, if there is one.
  std::optional<Id> next(Time now);
  // It waits no more, and is not served: it has gone. Call it right after next().
  void was_gone(Id id);
  void proved(Id id);
  void ended(Id id);
  // Those of the waiting that `is_gone`. They wait no more.
  std::vector<Id> forget_waiting(const std::function<bool(Id)>& is_gone);
  // Connections that must be closed: too many wait. They wait no more.
  std::vector<Id> too_many();
  // Connections that are served and must be cut, since others wait.
  std::vector<Id> overdue(Time now);

  std::vector<Id> served() const;
  std::size_t served_count() const { return served_.size(); }
  std::size_t waiting() const { return waiting_count_; }
  bool is_waited() const { return waiting_count_ > 0; }
  // Many nodes come just now, and prove themselves.
  bool is_earning() const { return 4 * earned_ >= static_cast<double>(limits_.served); }
  bool is_full() const { return static_cast<double>(served_.size()) >= most_served(); }

 private:
  struct Waiting {
    Id id;
    Wire wire;
  };
  struct ServedConnection {
    double cost;
    std::list<std::pair<Id, Time>>::iterator place;
  };
  using Addresses = std::map<std::string, std::deque<Waiting>>;

  double most_served() const { return static_cast<double>(limits_.served) + earned_; }
  double cost_of(Wire wire) const { return wire == Wire::kTls ? limits_.tls_cost : 1; }
  Waiting take(Addresses::iterator address);
  void refill(Time now);
  std::optional<Id> next_of_waiting(Time now);
  void erase(Id id, bool costs_nothing);

  const UnprovenLimits limits_;
  double failures_left_;  // together with what is earned never below zero
  double earned_ = 0;
  std::optional<Time> filled_at_;
  bool was_waited_ = false;  // then
  Addresses waiting_;
  std::size_t waiting_count_ = 0;
  std::string last_address_;  // whose turn was last
  bool newest_is_next_ = false;
  std::unordered_map<Id, ServedConnection> served_;
  std::list<std::pair<Id, Time>> order_;  // of those that are served, oldest first
};

}  // namespace ddprun::rendezvous
