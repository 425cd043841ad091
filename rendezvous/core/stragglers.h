// The ranks that are slower than the others. In a synchronous job all steps take as long as those
// of the slowest rank. So a step's length names nobody. The others wait for it in a collective. A
// rank's own time ends when the last rank makes the step's last call. The rank's longest wait for
// the last rank at one of the calls is taken off. Without collectives it is the whole step.
// Nodes tell samples of their ranks' steps. Pure: no I/O and no clock.
//
// A window holds one sample of each rank that tells any. It is judged when all ranks have told one,
// or one tells its next. A rank is named if its own time was above kSlower x the median in
// kSlowWindows windows on end. A rank may be slow in some steps only. The
// percentile 97 of its own times names it then, above kSlowerAtTimes x the median.
//
// All times count from the end of the rank's step before, by its own clock. All ranks end a step at
// nearly the same moment, since its collectives have let them go. So no clock is compared with
// another one.
//
// A node may lie. It speaks for its own ranks alone, and what is kept of them is bounded.
//
// Owned by Host, used on its thread only.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "rendezvous/core/inquiry.h"
#include "rendezvous/core/membership.h"
#include "rendezvous/core/rendezvous.h"

namespace ddprun::rendezvous {

inline constexpr double kSlower = 1.15;
inline constexpr double kSlowerAtTimes = 1.5;
// Fewer steps in a window have no percentile 97.
inline constexpr int kLeastStepsForTimes = 60;
inline constexpr int kSlowWindows = 3;
// A rank that was named and is no straggler any more may be named again after so many windows.
inline constexpr int kFastWindows = 30;

struct OwnTime {
  int rank = 0;
  double own_us = 0;
  double ratio = 0;  // to the median; of an even number the lower one of the two in the middle
};
// The own times of ranks of one group with equally many calls, in the order of `samples`. Empty if
// nothing can be said: there are fewer than two ranks.
std::vector<OwnTime> own_times(const std::vector<StepSample>& samples);

class Stragglers {
 public:
  // A node tells samples of its ranks.
  std::optional<Announcement> reported(SessionId from, const StepReport& report,
                                       const Membership& membership, Time now);
  // The membership may have changed. If the round runs no more, nothing of it is kept.
  void follow(const Membership& membership);
  // Nothing is kept.
  void end();

 private:
  struct Node {
    int first_rank = 0;
    int ranks = 0;
    std::string hostname{};
    bool hears = false;
    HostSample host{};
    bool holds(int rank) const { return rank >= first_rank && rank < first_rank + ranks; }
  };
  // Windows in which a rank was slow, or was not, one after the other.
  struct Streak {
    int slow_windows = 0;
    Time slow_since{};
    int fast_windows = 0;  // since it was slow
    bool is_told = false;
    OwnTime last{};
    bool is_slow() const { return slow_windows >= kSlowWindows; }
  };
  struct Rank {
    Streak mean{};      // in the mean of its steps
    Streak at_times{};  // in some of them
    int cpu_wait = 0;   // thousandths
    int usual_cpu_wait = 0;
  };

  bool begin(SessionId from, const Membership& membership, std::int64_t round, Time now);
  std::optional<Announcement> judge_window(Time now);
  void judge(const std::vector<StepSample>& alike);
  void judge_times(const std::vector<StepSample>& alike);
  void note(Streak& streak, const OwnTime& own, double slower) const;
  std::vector<int> slow_ranks_with_news(const Node& node, Streak Rank::*streak);
  std::optional<Announcement> tell(Time now);
  std::string sentence_of(const Node& node, const std::vector<int>& slow, Streak Rank::*streak,
                          Time now) const;

  std::int64_t round_ = 0;
  int world_size_ = 0;
  std::map<SessionId, Node> nodes_;
  std::map<int, StepSample> window_;  // by rank
  Time window_began_{};
  std::map<int, Rank> ranks_;
};

}  // namespace ddprun::rendezvous
