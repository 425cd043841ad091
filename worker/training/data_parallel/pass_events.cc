#include "worker/training/data_parallel/pass_events.h"

#include <c10/core/impl/VirtualGuardImpl.h>

#include <cmath>

namespace ddprun::worker {

PassEvents::Pass::Pass(c10::DeviceType type) {
  for (std::size_t i = 0; i < kPassMoments; ++i)
    events_.emplace_back(type, c10::EventFlag::BACKEND_DEFAULT);  // with times
}

std::int64_t PassEvents::Pass::between(PassMoment begin, PassMoment end) const {
  constexpr double kNanosecondsInMillisecond = 1e6;
  return std::llround(at(begin).elapsedTime(at(end)) * kNanosecondsInMillisecond);
}

void PassEvents::begin_pass() {
  drop_open();
  if (!is_measured(++count_)) return;
  if (passes_.size() == kKeptMax) passes_.pop_front();
  passes_.emplace_back(device_.type());
  is_open_ = true;
}

void PassEvents::end_pass(bool whole) {
  if (!whole) drop_open();
  is_open_ = false;
}

void PassEvents::drop_open() {
  if (is_open_) passes_.pop_back();
  is_open_ = false;
}

void PassEvents::mark(PassMoment moment) {
  if (!is_open_) return;
  if (ranks_.is_capturing()) return drop_open();
  passes_.back()
      .events_.at(static_cast<std::size_t>(moment))
      .record(c10::impl::VirtualGuardImpl(device_.type()).getStream(device_));
}

}  // namespace ddprun::worker
