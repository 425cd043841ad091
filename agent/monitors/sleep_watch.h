// The watch behind TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT, a variable of torchrun 2.15 (pytorch
// pull request 185414). A worker in uninterruptible sleep (state D in proc_pid_stat(5)) waits
// inside the kernel. It waits for a driver or a dead network disk, and no signal ends it. If it
// sleeps so for longer than the variable says, it will not come back. This file finds such a
// worker; it does not end it. SleepTable is the pure core. SleepWatch is the shell: it runs on the
// loop's thread and is owned by Monitors. Without the variable there is no SleepWatch, and no timer
// runs.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <functional>
#include <map>
#include <optional>
#include <vector>

#include "agent/core/clock.h"
#include "base/loop.h"

namespace ddprun::agent {

class SleepTable {
 public:
  explicit SleepTable(std::chrono::nanoseconds limit) : limit_(limit) {}
  // `workers`: pid of each live worker, and whether it is in state D at `now`. Returns the first
  // worker that was seen in state D at every call for at least the limit. A worker that is not in
  // `workers`, or not in state D, starts anew. Call it often: a short wake-up between two calls is
  // not seen.
  std::optional<pid_t> look(const std::map<pid_t, bool>& workers, Time now);

 private:
  std::chrono::nanoseconds limit_;
  std::map<pid_t, Time> asleep_since_;
};

class SleepWatch {
 public:
  // Looks at the workers that `pids` returns, a few times within `limit`, at least once a second.
  // `limit` must be more than 0. Calls `on_stuck` once, with the pid of the worker that sleeps too
  // long, and then looks no more.
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
