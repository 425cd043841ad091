#include "agent/monitors/monitors.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "agent/processes/descendants.h"
#include "base/log.h"

namespace ddprun::agent {
namespace {

// Returns whether `pid` is a worker, or something that a worker started. The FIFO's lines may name
// any pid, and one that is gone may be another process's by now. The watchdog must not kill that.
bool is_ours(int pid) {
  const auto below = descendants(::getpid());
  return std::find(below.begin(), below.end(), pid) != below.end();
}

// The user's path, else one in the job's own folder. Empty if there is none.
std::string timer_path(const WatchPlan& plan, const std::string& folder) {
  if (!plan.timer_file->empty() || folder.empty()) return *plan.timer_file;
  return folder + "/" + kTimerName;
}

}  // namespace

Result<void> Monitors::begin(asio::io_context& loop, const WatchPlan& plan, Hooks hooks) {
  if (plan.timer_file) {
    auto watchdog = Watchdog::make(loop, timer_path(plan, hooks.folder), is_ours);
    if (!watchdog) return watchdog.error();
    watchdog_ = std::move(*watchdog);
  }
  if (plan.most_sleep.count() > 0) {
    sleep_watch_ = std::make_unique<SleepWatch>(loop, plan.most_sleep, std::move(hooks.workers),
                                                std::move(hooks.stuck));
  }
  if (plan.health_port) {
    auto port = HealthPort::open(loop, *plan.health_port, std::move(hooks.state));
    if (port) {
      health_port_ = std::move(*port);
    } else {
      log::warning(fmt::format("no health check server: {}", port.error().message()));
    }
  }
  return {};
}

// Only the watchdog needs this: SleepWatch asks for the live workers at every look.
void Monitors::forget(pid_t pid) {
  if (watchdog_) watchdog_->forget(pid);
}

void Monitors::end() {
  watchdog_.reset();
  sleep_watch_.reset();
  health_port_.reset();
}

}  // namespace ddprun::agent
