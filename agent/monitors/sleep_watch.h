// TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT, of torchrun 2.15 (pytorch pull request 185414): a
// worker that stays in uninterruptible sleep so long (a driver, a dead network disk) will not come
// back, and no signal ends it. Off, nothing wakes for it. SleepTable is the pure core; SleepWatch
// the shell, of the loop's thread, owned by Monitors.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <functional>
#include <map>
#include <optional>
#include <vector>

#include "agent/core/clock.h"
#include "proto/loop.h"

namespace ddprun::agent {

class SleepTable {
 public:
  explicit SleepTable(std::chrono::nanoseconds limit) : limit_(limit) {}
  // Pids of workers -> whether they are in uninterruptible sleep at `now`. The first that was in
  // each look for as long as the limit; those that are not listed any more are forgotten.
  std::optional<pid_t> look(const std::map<pid_t, bool>& workers, Time now);

 private:
  std::chrono::nanoseconds limit_;
  std::map<pid_t, Time> asleep_since_;
};

class SleepWatch {
 public:
  // Looks a few times within `limit` (more than 0) at the workers that `pids` names. Calls
  // `on_stuck` once, with the worker that sleeps too long, and looks no more.
  SleepWatch(asio::io_context& loop, std::chrono::nanoseconds limit,
             std::function<std::vector<pid_t>()> pids, std::function<void(pid_t)> on_stuck);
  SleepWatch(const SleepWatch&) = delete;
  SleepWatch& operator=(const SleepWatch&) = delete;
  SleepWatch(SleepWatch&&) = delete;
  SleepWatch& operator=(SleepWatch&&) = delete;
  ~SleepWatch() = default;

 private:
  void wait();
  void look();

  asio::steady_timer timer_;
  std::chrono::nanoseconds interval_;
  SleepTable table_;
  std::function<std::vector<pid_t>()> pids_;
  std::function<void(pid_t)> on_stuck_;
};

}  // namespace ddprun::agent
