// All that watches the workers beside their exits, each asked for by a variable: the watchdog
// (watchdog.h), the watch over uninterruptible sleep (sleep_watch.h) and the health port
// (health_port.h). Loop's thread; owned by Agent.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "agent/core/config.h"
#include "agent/monitors/health_port.h"
#include "agent/monitors/sleep_watch.h"
#include "agent/monitors/watchdog.h"

namespace ddprun::agent {

class Monitors {
 public:
  struct Hooks {
    std::function<std::vector<pid_t>()> workers;  // the live ones
    std::function<void(pid_t)> stuck;             // one of them will not come back
    std::function<std::string()> state;           // what a probe is told
  };

  // Starts what `plan` asks for; nothing else wakes up or listens. Errors: the watchdog's FIFO
  // cannot be used. A health port that is taken is warned of: the job is more than its probe.
  Result<void> begin(asio::io_context& loop, const WatchPlan& plan, Hooks hooks);
  // The worker ended.
  void forget(pid_t pid);
  // On the loop, only when nothing of it runs any more.
  void end();

  // The watchdog's FIFO; empty: off.
  std::string timer_file() const { return watchdog_ ? watchdog_->path() : ""; }

 private:
  std::unique_ptr<Watchdog> watchdog_;
  std::unique_ptr<SleepWatch> sleep_watch_;
  std::unique_ptr<HealthPort> health_port_;
};

}  // namespace ddprun::agent
