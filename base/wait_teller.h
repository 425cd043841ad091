// Tells of one wait of this process while it goes on, at the moments of wait_schedule.h. It does
// not know what is awaited: the caller of begin() gives the words. Loop's thread. Owned by who
// waits.
#pragma once

#include <boost/asio/io_context.hpp>
#include <chrono>
#include <functional>
#include <string>
#include <utility>

#include "base/alarm.h"
#include "base/wait_schedule.h"

namespace ddprun {

class WaitTeller {
 public:
  using Time = WaitSchedule::Time;
  // Returns the line for a wait that has lasted so long. Empty if nothing is told now.
  using Words = std::function<std::string(std::chrono::seconds waited)>;

  WaitTeller(boost::asio::io_context& loop, std::function<void(const std::string&)> say)
      : say_(std::move(say)), alarm_(loop, [this] { look(); }) {}

  // Ends the wait before, if one was told of.
  void begin(Words words) {
    words_ = std::move(words);
    schedule_.begin(std::chrono::steady_clock::now());
    alarm_.set(schedule_.look_again_at());
  }
  void end() {
    schedule_.end();
    alarm_.set(Time::max());
  }
  bool is_waiting() const { return schedule_.is_waiting(); }

 private:
  void look() {
    const Time at = std::chrono::steady_clock::now();
    const std::string line = schedule_.is_due(at) ? words_(schedule_.waited(at)) : std::string();
    if (!line.empty()) say_(line);
    alarm_.set(schedule_.look_again_at());
  }

  std::function<void(const std::string&)> say_;
  Words words_;
  WaitSchedule schedule_;
  Alarm alarm_;
};

}  // namespace ddprun
