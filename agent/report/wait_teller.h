// Tells on stderr of one wait of this node while it goes on, at the moments of wait_schedule.h. It does
// not know what is awaited: who begins the wait gives the words. Loop's thread. Owned by Reporter.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <utility>

#include "agent/core/clock.h"
#include "proto/alarm.h"
#include "proto/loop.h"
#include "proto/wait_schedule.h"

namespace ddprun::agent {

class WaitTeller {
 public:
  // The line, newline included, for a wait that has lasted so long; empty: nothing is told now.
  using Words = std::function<std::string(std::chrono::seconds waited)>;

  WaitTeller(asio::io_context& loop, std::function<void(const std::string&)> say)
      : say_(std::move(say)), alarm_(loop, [this] { look(); }) {}

  // Ends the wait before, if one was told of.
  void begin(Words words) {
    words_ = std::move(words);
    schedule_.begin(now());
    alarm_.set(schedule_.look_again_at());
  }
  void end() {
    schedule_.end();
    alarm_.set(Time::max());
  }

 private:
  void look() {
    const Time at = now();
    if (schedule_.is_due(at)) say_(words_(schedule_.waited(at)));
    alarm_.set(schedule_.look_again_at());
  }

  std::function<void(const std::string&)> say_;
  Words words_;
  WaitSchedule schedule_;
  Alarm alarm_;
};

}  // namespace ddprun::agent
