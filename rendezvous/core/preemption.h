// The step at whose end all ranks of a round save, before a node is taken away. One node is given
// notice. All nodes are asked how far their ranks are. Then they hold a later step: a rank that
// reaches it waits at its end. If no rank has passed it, all nodes take it. Otherwise a later one
// is held. So all ranks save after the same step. Pure: no I/O and no clock. An event and `now` go
// in; what the nodes are told comes out.
//
//   quiet --(a notice)--> asking
//   asking --(all have answered, ranks count steps)--> holding
//   holding --(all have answered, a rank has passed the step)--> holding a later one
//   holding --(all have answered, no rank has passed it)--> quiet, with the step
//   any --(kStepAnswerLimit is over, or no rank counts)--> quiet, with step 0: at once
//   asking to save and go on --(kStepAnswerLimit is over)--> quiet: ranks have yet to save
//   any --(the round breaks, or the job ends)--> quiet
//
// If the round can go on without the nodes that were given notice, they end alone and at once. All
// nodes may be given notice in one moment. So in such a round kMoreNotices passes first.
//
// A node may lie. It speaks for itself alone. A number that is too large ends the search.
//
// Owned by Host, used on its thread only.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "rendezvous/core/inquiry.h"
#include "rendezvous/core/membership.h"
#include "rendezvous/core/rendezvous.h"

namespace ddprun::rendezvous {

// How long the answers to one order are waited for. Ranks may wait meanwhile. These limits are
// shorter if the deadline is: the node that was given notice must not have gone before.
inline constexpr std::chrono::seconds kStepAnswerLimit{3};
// How long further notices are waited for, if nodes may leave a round that goes on.
inline constexpr std::chrono::seconds kMoreNotices{1};
// The first step that is held is so far ahead of the farthest rank. Each try doubles it.
inline constexpr std::int64_t kFirstStepsAhead = 2;
inline constexpr std::int64_t kMostStepsAhead = std::int64_t{1} << 20;
// Steps above are no count.
inline constexpr std::int64_t kMostSteps = std::int64_t{1} << 53;

class Preemption {
 public:
  // A node was given notice, or an operator wants the ranks to save. While a step is sought, a
  // notice changes what follows from it, and one to save alone changes nothing. `is_host`: the job
  // ends with this node, so all ranks save.
  std::optional<Announcement> noticed(SessionId from, const Notice& notice,
                                      const Membership& membership, Time now, bool is_host = false);
  // The same for somebody who is no node. Returns nothing if no round runs, too.
  std::optional<Announcement> wanted(const Notice& notice, const Membership& membership, Time now);
  // A node's answer to the last order. Another one changes nothing.
  std::optional<Announcement> answered(SessionId from, const StepAnswer& answer, Time now);
  // The membership may have changed. If the round runs no more, no step is sought.
  void follow(const Membership& membership);
  // No step is sought.
  void end();
  // Time passed. Call it at look_again_at().
  std::optional<Announcement> tick(Time now);

  // When tick() can next change something. Time::max(): only an event can.
  Time look_again_at() const { return look_at_; }
  bool is_quiet() const { return state_ == State::kQuiet; }

 private:
  enum class State { kQuiet, kCollecting, kAsking, kHolding };

  bool begin(const Membership& membership);
  std::optional<Announcement> merge(const Notice& notice, Time now);
  std::optional<Announcement> seek(Time now);
  std::optional<Announcement> send(StepStage stage, Time now);
  Announcement take(std::int64_t step, Time now);
  Time end_of(std::chrono::milliseconds limit, Time now) const;
  Announcement end_noticed(Time now);
  bool goes_on_without_noticed() const;

  State state_ = State::kQuiet;
  Time look_at_ = Time::max();
  StepOrder order_{};  // the last one
  std::int64_t number_ = 0;
  std::int64_t is_over_in_ = 0;  // the round that is told to end

  // ---- while it is not quiet ----
  Time kill_at_{};
  std::map<SessionId, std::string> nodes_;  // of the round that take orders, and their hosts
  bool has_older_ = false;                  // a node of the round takes none
  int nodes_in_round_ = 0;
  RoundPolicy policy_{};
  std::set<SessionId> noticed_;
  bool host_is_noticed_ = false;
  std::map<SessionId, std::int64_t> steps_;  // the answers
  std::int64_t ahead_ = kFirstStepsAhead;
};

}  // namespace ddprun::rendezvous
