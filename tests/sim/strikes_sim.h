// A job in virtual time whose nodes fail, and sit out for it. It has the real Membership. Beside it
// is a count of strikes of its own, by which each round is judged. All from one seed.
#pragma once

#include <map>
#include <optional>
#include <random>
#include <set>
#include <vector>

#include "rendezvous/core/membership.h"

namespace ddprun::sim {

class StrikesSim {
 public:
  explicit StrikesSim(unsigned seed);
  // Runs some failures, and then a long quiet. Fails the test for each broken promise.
  void run();
  int rounds() const { return rounds_; }

 private:
  using Time = rendezvous::Time;
  struct Node {
    rendezvous::SessionId session = 0;
    bool was_seated = false;  // in the round before
    bool is_seated = false;
    std::vector<Time> strikes{};
    int pauses = 0;
    Time ends = Time::min();
  };

  int draw(int below) { return static_cast<int>(random_() % static_cast<unsigned>(below)); }
  int some_seated_node();
  void join(int node);
  void join_all(std::vector<int> nodes);
  void pass(std::chrono::seconds length);
  void fail(int node, bool is_of_the_node);
  void strike(Node& node) const;
  double count(const Node& node) const;
  void hear(const rendezvous::Outcome& outcome);
  void check_round(const rendezvous::Publication& published);
  void check_counts() const;

  std::mt19937 random_;
  Time now_{std::chrono::hours(1000)};
  rendezvous::RoundPolicy policy_;
  std::optional<rendezvous::Membership> membership_;
  std::vector<Node> nodes_;
  std::set<int> to_join_;  // their round broke
  rendezvous::SessionId last_session_ = 0;
  int rounds_ = 0;
};

}  // namespace ddprun::sim
