#include "daemon/ctl_waiting.h"

#include <chrono>
#include <cstdio>
#include <utility>

#include "base/shown_text.h"
#include "base/wait_schedule.h"

namespace ddprun::daemon {

CtlWaiting::CtlWaiting(std::string what)
    : what_(std::move(what)), thread_([this](const std::stop_token& stop) { tell(stop); }) {}

void CtlWaiting::note(std::string why) {
  const std::lock_guard lock(mutex_);
  why_ = std::move(why);
}

void CtlWaiting::tell(const std::stop_token& stop) {
  using Clock = std::chrono::steady_clock;
  WaitSchedule schedule;
  schedule.begin(Clock::now());
  std::unique_lock lock(mutex_);
  while (!stop.stop_requested()) {
    stopped_.wait_until(lock, stop, schedule.look_again_at(), [] { return false; });
    const auto now = Clock::now();
    if (stop.stop_requested() || !schedule.is_due(now)) continue;
    const std::string line = why_.empty() ? what_ : what_ + ": " + why_;
    std::fprintf(stderr, "ddpctl: waiting for %lld s: %s\n",
                 static_cast<long long>(schedule.waited(now).count()), shown_text(line).c_str());
  }
}

}  // namespace ddprun::daemon
