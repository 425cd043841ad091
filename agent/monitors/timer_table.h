// The deadlines that workers set for themselves through the watchdog's FIFO. A request is one line
// with one JSON object; torch/distributed/elastic/timer/file_based_local_timer.py of 2.11 writes
// it. Times are unix seconds, as the workers wrote them. TimerTable reads no FIFO and kills nobody:
// watchdog.h does. Pure; any thread, but one at a time. Owned by Watchdog.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"

namespace ddprun::agent {

// A longer line is no request. A write to a FIFO stays in one piece only up to PIPE_BUF bytes,
// 4,096 on Linux (pipe(7)). torch's client sends no more.
inline constexpr std::size_t kMaxTimerLineBytes = 4096;
// The most deadlines of one node at a time. A worker has a handful. If there are so many, a worker
// sets them in a loop and never releases them.
inline constexpr std::size_t kMaxTimers = 65536;

// A deadline that has passed.
struct ExpiredTimer {
  int pid = 0;        // of the process that set it; not checked, it may be any number above 1
  std::string scope;  // its name; one process may have several
  int signo = 0;      // what to kill the process with

  bool operator==(const ExpiredTimer&) const = default;
};

class TimerTable {
 public:
  // Reads one request, without its newline. Sets or moves a deadline, or releases it if
  // `expiration_time` is negative. Errors: kInvalidArgument, with what is wrong with the line; the
  // table is then unchanged.
  Result<void> apply(std::string_view line);
  // Removes every deadline that has passed at `now` (unix seconds) and returns them.
  std::vector<ExpiredTimer> take_expired(double now);
  // The process has ended: drops its deadlines.
  void forget(int pid);
  // The earliest deadline, in unix seconds; nothing if there is none.
  std::optional<double> next() const;

 private:
  struct Deadline {
    double at = 0;
    int signo = 0;
  };
  std::map<std::pair<int, std::string>, Deadline> deadlines_;  // by pid and scope
};

}  // namespace ddprun::agent
