// How often and how soon a job may be restarted. Pure: `now` comes in. One per job; Membership owns
// it and uses it on its thread.
//
// With max_restarts alone, the job has that many restarts, each at once, as in torchrun. With a
// window, it has that many within any span of the window's length. A job that makes progress gets
// its budget back. With a backoff, the first restart after progress is immediate. Each further one
// waits twice as long as the one before. The waits have a random part (jitter). Otherwise jobs that
// failed together, of one cause, would all come back in one moment.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>

#include "rendezvous/core/rendezvous.h"

namespace ddprun::rendezvous {

// The time of an event. It is always passed in; nothing here reads the clock.
using Time = std::chrono::steady_clock::time_point;

// For a job without a backoff of its own. It may restart this often in a row at once after attempts
// that were shorter than kShortAttempt. Then it waits before each restart, from kDefaultBackoff up
// to kDefaultBackoffMax. Otherwise a script that fails at once, with a large --max-restarts, would
// keep the host busy with starts alone.
inline constexpr int kFreeRestarts = 256;
inline constexpr std::chrono::milliseconds kShortAttempt{1000};
inline constexpr std::chrono::milliseconds kDefaultBackoff{1000};
inline constexpr std::chrono::milliseconds kDefaultBackoffMax{60'000};

struct RestartRules {
  int max_restarts = 0;
  std::chrono::milliseconds window{0};       // 0: the whole job
  std::chrono::milliseconds backoff{0};      // 0: none
  std::chrono::milliseconds backoff_max{0};  // 0 with a backoff: it does not grow
  int most_without_progress = 0;             // progress.h; 0: no limit
  StrikeRules strikes{};                     // strikes.h

  bool operator==(const RestartRules&) const = default;
};

class RestartBudget {
 public:
  explicit RestartBudget(std::uint64_t jitter_seed) : random_(jitter_seed) {}

  // Goes on for a leader that is gone, with the restarts that were spent under it. When they were
  // is not known: a window counts from now on, and so does a row.
  void resume(int restarts, const RestartRules& rules, Time now);
  // An attempt starts. `rules` hold until the next one starts.
  void attempt_started(const RestartRules& rules, Time now);
  // The attempt failed. Returns whether a restart is left, and counts it if so. Then start no
  // attempt before not_before().
  bool take(Time now);
  // No attempt may start before this time.
  Time not_before() const { return not_before_; }
  // Restarts of the whole job so far.
  int restarts() const { return restarts_; }
  // Those of the attempt that started last.
  const RestartRules& rules() const { return rules_; }

 private:
  std::chrono::nanoseconds delay();
  bool was_progress(Time now) const;

  RestartRules rules_;
  std::uint64_t random_;
  int restarts_ = 0;
  int in_a_row_ = 0;  // since the last progress
  Time started_{};
  Time not_before_ = Time::min();
  std::deque<Time> recent_;  // restarts within the window, oldest first
};

}  // namespace ddprun::rendezvous
