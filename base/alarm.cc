#include "base/alarm.h"

#include <utility>

namespace ddprun {

Alarm::Alarm(boost::asio::io_context& loop, std::function<void()> ring)
    : timer_(loop), ring_(std::move(ring)) {}

void Alarm::set(Time when) {
  if (when == at_) return;
  at_ = when;
  timer_.cancel();
  if (when == Time::max()) return;
  timer_.expires_at(when);
  timer_.async_wait(
      [this, when, alive = std::weak_ptr(alive_)](const boost::system::error_code& cancelled) {
        // Delivered although it was set to another moment meanwhile: that one rings by itself.
        if (cancelled || alive.expired() || when != at_) return;
        at_ = Time::max();
        ring_();
      });
}

void Alarm::set_no_later_than(Time when) {
  if (when < at_) set(when);
}

}  // namespace ddprun
