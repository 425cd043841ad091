// How often and how soon a job may be restarted. Pure: `now` comes in. One per job, in Membership.
//
// Plain: `max_restarts` restarts, each at once, as torchrun counts them. With a window: that many
// within any span of its length, so that a job which makes progress has its budget back. With a
// backoff: the first restart after progress is immediate, each further one waits twice as long as
// the one before, with jitter so that jobs which share what broke do not return in one moment.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>

#include "rendezvous/rendezvous.h"

namespace ddprun::rendezvous {

// Only passed in, never read from the clock here.
using Time = std::chrono::steady_clock::time_point;

// Restarts in a row, each after less than kShortAttempt, that a job without a backoff of its own
// may make at once. Beyond, it waits from kDefaultBackoff to kDefaultBackoffMax: a large
// --max-restarts must not turn a script that fails at once into a spinning host.
inline constexpr int kFreeRestarts = 256;
inline constexpr std::chrono::milliseconds kShortAttempt{1000};
inline constexpr std::chrono::milliseconds kDefaultBackoff{1000};
inline constexpr std::chrono::milliseconds kDefaultBackoffMax{60'000};

struct RestartRules {
  int max_restarts = 0;
  std::chrono::milliseconds window{0};       // 0: the whole job
  std::chrono::milliseconds backoff{0};      // 0: none
  std::chrono::milliseconds backoff_max{0};  // 0 with a backoff: it does not grow

  bool operator==(const RestartRules&) const = default;
};

class RestartBudget {
 public:
  explicit RestartBudget(std::uint64_t jitter_seed) : random_(jitter_seed) {}

  // An attempt starts under these rules.
  void attempt_started(const RestartRules& rules, Time now);
  // The attempt failed. True when a restart is left; it is counted.
  bool take(Time now);
  // Before this no attempt may start.
  Time not_before() const { return not_before_; }
  // Restarts of the whole job so far.
  int restarts() const { return restarts_; }

 private:
  std::chrono::nanoseconds delay();
  bool was_progress(Time now) const;

  RestartRules rules_;
  std::uint64_t random_;
  int restarts_ = 0;
  int in_a_row_ = 0;  // since the last progress
  Time started_{};
  Time not_before_ = Time::min();
  std::deque<Time> recent_;  // restarts within the window
};

}  // namespace ddprun::rendezvous
