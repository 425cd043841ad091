// Deadlines that workers set for themselves through the watchdog's FIFO
// (torch/distributed/elastic/timer/file_based_local_timer.py 2.11): one JSON object a line. Pure;
// times are unix seconds as the workers wrote them.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "proto/result.h"

namespace ddprun::agent {

// A line longer than this is no request: writes to a FIFO are whole only up to PIPE_BUF.
inline constexpr std::size_t kMaxTimerLineBytes = 4096;
// Deadlines of one node at a time. A worker has a handful; more is a loop gone wrong.
inline constexpr std::size_t kMaxTimers = 65536;

struct ExpiredTimer {
  int pid = 0;
  std::string scope;
  int signo = 0;

  bool operator==(const ExpiredTimer&) const = default;
};

class TimerTable {
 public:
  // Sets, moves or (negative expiration_time) releases a deadline. Errors say what is wrong with
  // the line.
  Result<void> apply(std::string_view line);
  // Takes out every deadline that has passed at `now`.
  std::vector<ExpiredTimer> take_expired(double now);
  // The process ended; its deadlines with it.
  void forget(int pid);
  // The earliest deadline; nothing when there is none.
  std::optional<double> next() const;

 private:
  struct Deadline {
    double at = 0;
    int signo = 0;
  };
  std::map<std::pair<int, std::string>, Deadline> deadlines_;
};

}  // namespace ddprun::agent
