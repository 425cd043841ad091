// One timer for what must be looked at again at a certain moment: a core's look_again_at(). Set it
// as often as the answer changes; it calls back once, when the moment has come. Set to Time::max()
// it wakes nobody. Loop's thread; owned by the shell whose core it serves.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <functional>
#include <memory>

namespace ddprun {

class Alarm {
 public:
  using Time = std::chrono::steady_clock::time_point;

  // `ring` may set the alarm again. It is never called after the alarm's end.
  Alarm(boost::asio::io_context& loop, std::function<void()> ring);
  Alarm(const Alarm&) = delete;
  Alarm& operator=(const Alarm&) = delete;
  Alarm(Alarm&&) = delete;
  Alarm& operator=(Alarm&&) = delete;
  ~Alarm() = default;

  // The next call comes at `when`; an earlier setting is forgotten. A moment that has passed rings
  // at once, from the loop.
  void set(Time when);
  // As set(), unless an earlier moment is set already.
  void set_no_later_than(Time when);

 private:
  boost::asio::steady_timer timer_;
  std::function<void()> ring_;
  Time at_ = Time::max();
  // A wait that is over can no longer be cancelled, and may be delivered after our end.
  std::shared_ptr<const bool> alive_ = std::make_shared<const bool>(true);
};

}  // namespace ddprun
