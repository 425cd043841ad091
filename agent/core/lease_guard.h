// Tells the guardian when it must end the workers in the agent's place. Then the agent is stopped,
// and its workers might live until now at most. The others may go on without this node by then. An
// agent that runs moves that moment in time, or ends its workers itself. Pure. Owned by the
// guardian.
#pragma once

#include <algorithm>
#include <chrono>

#include "agent/core/clock.h"
#include "rendezvous/core/keep_alive.h"

namespace ddprun::agent {

class LeaseGuard {
 public:
  // The guardian looks so long after the end: an agent that runs acts at the end itself. It must
  // find the agent stopped in each of kLooks looks. All of that is less than kFenceMargin.
  static constexpr std::chrono::milliseconds kAgentIsFirst{60};
  static constexpr std::chrono::milliseconds kLookEvery{40};
  static constexpr int kLooks = 3;
  static_assert(kAgentIsFirst + kLooks * kLookEvery < rendezvous::kFenceMargin / 2);
  // A guardian that comes so late did not run meanwhile, and the agent perhaps as little. The agent
  // may then go on, and ask the host first, for the time of kGrace.
  static constexpr std::chrono::milliseconds kMostLate = rendezvous::kSuspendedFor;
  static constexpr std::chrono::milliseconds kGrace = rendezvous::kAskLimit * 3 / 2;
  // An agent that runs and does not move the end has no workers. The pauses grow up to this.
  static constexpr std::chrono::milliseconds kLongestPause{1000};

  struct AgentSighting {
    Time workers_until{};     // as the agent said last; zero: nothing ends them
    bool is_stopped = false;  // the agent cannot run now
  };

  // Call it at next(), and sooner if you like. True once for each end: end the workers now.
  bool look(const AgentSighting& seen, Time now) {
    const bool is_late = next_ != Time::max() && now > next_ + kMostLate;
    if (seen.workers_until == Time{} || seen.workers_until == ended_for_) return wait(Time::max());
    if (now < seen.workers_until + kAgentIsFirst) return wait(seen.workers_until + kAgentIsFirst);
    if (is_late) not_before_ = now + kGrace;
    if (looks_ > 0 && now < next_) return false;
    if (!seen.is_stopped) {
      pause_ = std::min(2 * pause_, kLongestPause);
      looks_ = 0;
      next_ = now + pause_;
      return false;
    }
    pause_ = kLookEvery;
    next_ = now + kLookEvery;
    if (++looks_ < kLooks || now < not_before_) return false;
    ended_for_ = seen.workers_until;
    wait(Time::max());
    return true;
  }

  // Returns when to look again. Time::max(): only when the agent has something new to say.
  Time next() const { return next_; }

 private:
  bool wait(Time until) {
    looks_ = 0;
    pause_ = kLookEvery;
    next_ = until;
    return false;
  }

  Time next_ = Time::max();
  Time not_before_{};
  Time ended_for_{};
  std::chrono::milliseconds pause_ = kLookEvery;
  int looks_ = 0;
};

}  // namespace ddprun::agent
