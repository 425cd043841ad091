#include "rendezvous/core/restart_budget.h"

#include <algorithm>

namespace ddprun::rendezvous {
namespace {

// SplitMix64 (Steele, Lea, Flood 2014): good enough to spread waits, and the same on every machine.
std::uint64_t next_random(std::uint64_t& state) {
  std::uint64_t z = (state += 0x9e3779b97f4a7c15U);
  z = (z ^ (z >> 30U)) * 0xbf58476d1ce4e5b9U;
  z = (z ^ (z >> 27U)) * 0x94d049bb133111ebU;
  return z ^ (z >> 31U);
}

// A random factor from 0.5 to 1. Half of the wait is certain, so a restart never comes at once.
double jitter(std::uint64_t& state) {
  constexpr double kRange = 9007199254740992.0;  // 2^53: a double holds 53 bits exactly
  return 0.5 + static_cast<double>(next_random(state) >> 11U) / kRange / 2;
}

}  // namespace

void RestartBudget::resume(int restarts, const RestartRules& rules, Time now) {
  restarts_ = restarts;
  attempt_started(rules, now);
}

void RestartBudget::attempt_started(const RestartRules& rules, Time now) {
  rules_ = rules;
  started_ = now;
}

bool RestartBudget::take(Time now) {
  if (rules_.window.count() > 0) {
    while (!recent_.empty() && recent_.front() + rules_.window <= now) recent_.pop_front();
    if (std::ssize(recent_) >= rules_.max_restarts) return false;
    recent_.push_back(now);
  } else if (restarts_ >= rules_.max_restarts) {
    return false;
  }
  if (was_progress(now)) in_a_row_ = 0;
  ++restarts_;
  ++in_a_row_;
  not_before_ = now + delay();
  return true;
}

// Nobody tells us about progress, so a long attempt stands for it. With a backoff it must outlast
// the window and the longest wait. Otherwise a job that mostly waits would seem to make progress,
// and would be restarted at once again.
bool RestartBudget::was_progress(Time now) const {
  const auto ran = now - started_;
  if (rules_.backoff.count() == 0) return ran >= kShortAttempt;
  return ran >= std::max({rules_.window, rules_.backoff_max, rules_.backoff});
}

// The wait before the restart that was just counted.
std::chrono::nanoseconds RestartBudget::delay() {
  const bool own = rules_.backoff.count() > 0;
  const int free = own ? 1 : kFreeRestarts;
  if (in_a_row_ <= free) return std::chrono::nanoseconds(0);
  const std::chrono::nanoseconds base = own ? rules_.backoff : kDefaultBackoff;
  const std::chrono::nanoseconds most =
      std::max<std::chrono::nanoseconds>(own ? rules_.backoff_max : kDefaultBackoffMax, base);
  // Stops at `most`: without that, dozens of doublings would overflow.
  std::chrono::nanoseconds wait = base;
  for (int doubled = free + 1; doubled < in_a_row_ && wait < most; ++doubled) wait *= 2;
  const double spread = jitter(random_) * static_cast<double>(std::min(wait, most).count());
  return std::chrono::nanoseconds(static_cast<std::int64_t>(spread));
}

}  // namespace ddprun::rendezvous
