// The watches beside the workers' exits: the watchdog (watchdog.h), uninterruptible sleep
// (sleep_watch.h) and the health port (health_port.h). Each of them runs only if an environment
// variable asks for it. Monitors starts and ends them and has no rules of its own. Runs on the
// loop's thread. Owned by Agent.
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
    std::function<std::vector<pid_t>()> workers;  // pids of the live workers
    std::function<void(pid_t)> stuck;    // this worker stays in the kernel; called once at most
    std::function<std::string()> state;  // the body of the answer to a probe
    std::string folder{};  // the job's own, for the watchdog's FIFO; empty: there is none
  };

  // Starts what `plan` asks for, and nothing else. Call it once. Errors: the watchdog's FIFO cannot
  // be used. If the health port cannot be had, it logs a warning and goes on. The job is worth more
  // than its probe.
  Result<void> begin(asio::io_context& loop, const WatchPlan& plan, Hooks hooks);
  // Tells that worker `pid` is gone. Call it as soon as the worker was reaped. The kernel may reuse
  // the pid, and the watchdog could kill the new process.
  void forget(pid_t pid);
  // Ends all of it. Call it on the loop's thread, but not inside one of the hooks. Stop the loop in
  // the same turn. Otherwise a timer that has expired already calls an object that is gone.
  void end();

  // Path of the watchdog's FIFO, for the workers' environment. Empty if there is no watchdog.
  std::string timer_file() const { return watchdog_ ? watchdog_->path() : ""; }

 private:
  std::unique_ptr<Watchdog> watchdog_;
  std::unique_ptr<SleepWatch> sleep_watch_;
  std::unique_ptr<HealthPort> health_port_;
};

}  // namespace ddprun::agent
