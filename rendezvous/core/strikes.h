// The nodes of a job that failed, and those that sit out for it. Pure: `now` comes in. One per job;
// Membership owns it and uses it on its thread.
//
// A failure that a node caused (NodeFault) is a strike. It counts 1, and half as much after each
// half-life. A node with enough of them sits out: first for kFirstPause, and twice as long each
// further time. If another node has had the same failure, it is the program's and no strike. It is
// the same if fault and exception are, and rank or round. The other node's strike is undone.
//
// A text holds them for files and messages, a line for each node: `NAME strikes=AGE,… pauses=N
// left=S`, in seconds.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "rendezvous/core/rendezvous.h"
#include "rendezvous/core/restart_budget.h"

namespace ddprun::rendezvous {

inline constexpr std::chrono::seconds kFirstPause{60};
inline constexpr std::chrono::seconds kLongestPause{3600};
// A strike that counts less is forgotten, after so many half-lives.
inline constexpr int kHalvings = 4;
inline constexpr std::size_t kMostStruckNodes = 64;
inline constexpr std::size_t kMostStrikes = 16;        // of one node; the newest ones
inline constexpr std::size_t kMostStrikesText = 4096;  // bytes
inline constexpr std::size_t kMostStruckName = 255;    // bytes; it has no blanks

// Returns why the node is to blame, one clause for people: "nobody reached it".
std::string_view describe(NodeFault fault);

class Strikes {
 public:
  // They hold from now on.
  void set_rules(const StrikeRules& rules) { rules_ = rules; }
  const StrikeRules& rules() const { return rules_; }

  // A failure of the node ended the attempt of `round`, or came after another one had. Returns
  // whether it is a strike. A node gets one for each round.
  bool failed(const std::string& node, std::int64_t round, const Failure& cause, Time now);
  // Undoes all of the node's. False: it has none.
  bool forgive(const std::string& node);
  // Drops the strikes that count no more. Returns whether a node has none left.
  bool forget_old(Time now);

  bool empty() const { return nodes_.empty(); }
  bool has(const std::string& node) const { return find(node) != nullptr; }
  double count(const std::string& node, Time now) const;
  // Until when the node sits out; Time::min(): it does not.
  Time pause_ends(const std::string& node) const;
  // Returns when the next of them may come back. Time::max(): none sits out.
  Time next_return(Time now) const;

  // All of them, as much as kMostStrikesText holds.
  std::string text(Time now) const;
  // Adds those of a text that was made at `then`. A node that is known keeps the more strikes.
  // Errors: kProtocol, a line is none.
  Result<void> add(std::string_view text, Time then);

 private:
  struct Node {
    std::string name;
    std::vector<Time> strikes;  // oldest first
    int pauses = 0;             // since it was last without a strike
    std::int64_t round = 0;     // of the last strike; a failure may be told twice
    Time ends = Time::min();    // of the last pause
  };
  // A failure of a worker, on any node.
  struct Seen {
    std::string node;
    std::int64_t round = 0;
    int rank = -1;
    NodeFault fault = NodeFault::kNone;
    std::string exception;
    Time at{};
  };

  const Node* find(const std::string& name) const;
  Node* find(const std::string& name);
  double count(const Node& node, Time now) const;
  bool is_the_programs(const Seen& failure, Time now);
  void undo(const Seen& failure, Time now);
  void strike(const std::string& name, std::int64_t round, Time now);
  static Result<Node> parse(std::string_view line, Time then);

  StrikeRules rules_;
  std::vector<Node> nodes_;
  std::vector<Seen> seen_;  // the newest ones
};

}  // namespace ddprun::rendezvous
