// Decides when a standby is warmed for which local rank. A standby is a worker that waits for its
// turn. It has done its predecessor's imports, and runs the user's program when that worker is
// needed anew. Pure: events and `now` go in; who is to be warmed comes out. Loop's thread; owned by
// Standbys.
//
// Standbys are warmed one after the other, and not before the workers have done their first step.
// Then all that they import is known, and a start is not slowed down. A program that counts no
// steps is given kSettled instead, since its start or the last import that it tried. It is given
// kLongestStart at most.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "agent/core/clock.h"

namespace ddprun::agent {

class StandbyPlan {
 public:
  // An attempt that counts no steps counts as running if nothing was imported for so long.
  static constexpr std::chrono::seconds kSettled{30};
  // Later it counts as running, whatever it tries to import.
  static constexpr std::chrono::seconds kLongestStart{600};
  // A standby whose imports take longer hangs.
  static constexpr std::chrono::seconds kLongestWarming{300};
  // How often the pages are looked at until the first step.
  static constexpr std::chrono::seconds kLook{1};

  StandbyPlan(bool wanted, int worker_count)
      : wanted_(wanted), standbys_(static_cast<std::size_t>(worker_count)) {}

  // The workers of a new attempt have started.
  void attempt_started(Time now);
  // The workers of the attempt end. Nothing is warmed until the next one.
  void attempt_ended();
  // Looks at the pages: steps of each local rank, and bytes that all have noted of imports. Answers
  // the standby that is warmed for too long.
  std::optional<int> looked(const std::vector<std::uint64_t>& steps, std::uint64_t noted, Time now);
  // The standby of this rank waits now.
  void waits(int local_rank);
  // It was let go. A rank that is unfit stays so.
  void released(int local_rank);
  // It has ended: no other is tried for this rank in this attempt.
  void ended(int local_rank);
  // It cannot be one: no other is tried for this rank.
  void unfit(int local_rank);
  // No standby any more, for none of them.
  void give_up() { wanted_ = false; }

  // Returns the worker whose standby is to be started now. Nothing if there is none, or if one is
  // being warmed already.
  std::optional<int> next() const;
  // Returns the workers that have no standby and can have one.
  std::vector<int> missing() const;
  void warming(int local_rank, Time now);
  bool is_waiting(int local_rank) const;
  // The workers of this attempt have done their first step, or had the time for it.
  bool is_settled() const { return running_ && settled_; }
  // Returns when to call looked(). Time::max(): there is nothing to look for now.
  Time look_again_at() const { return look_at_; }

 private:
  enum class State { kNone, kWarming, kWaiting, kEnded, kUnfit };

  void set(int local_rank, State state);
  std::optional<int> warmed_rank() const;

  bool wanted_;
  bool running_ = false;
  bool settled_ = false;
  std::uint64_t noted_ = 0;  // of imports, at the last look
  Time started_{};
  Time last_import_{};  // or the start
  Time look_at_ = Time::max();
  Time warm_until_{};            // of the one that is warmed
  std::vector<State> standbys_;  // by local rank
};

}  // namespace ddprun::agent
