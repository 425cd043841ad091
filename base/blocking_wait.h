// Logs one wait of a thread that blocks, at the moments of wait_schedule.h. The caller blocks until
// until() at most, calls tell(), and goes on waiting. Owned by who waits.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <string>

#include "base/log.h"
#include "base/wait_schedule.h"

namespace ddprun {

class BlockingWait {
 public:
  using Time = WaitSchedule::Time;

  BlockingWait() { schedule_.begin(std::chrono::steady_clock::now()); }

  // The moment to stop blocking: `end`, or an earlier one at which to tell.
  Time until(Time end) const { return std::min(end, schedule_.look_again_at()); }

  // Logs `words()`, a text, if it is time.
  template <typename Words>
  void tell(Words words) {
    const Time now = std::chrono::steady_clock::now();
    if (schedule_.is_due(now))
      log::warning(
          fmt::format("waiting for {} s: {}", schedule_.waited(now).count(), std::string(words())));
  }

 private:
  WaitSchedule schedule_;
};

}  // namespace ddprun
