#include "rendezvous/trust/http2_meter.h"

#include <algorithm>

#include "base/duration.h"
#include "rendezvous/trust/http2_frame.h"

namespace ddprun::rendezvous {

bool Http2Meter::Budget::spend(double amount, const Allowance& allowed, Time now) {
  if (!is_begun_) left_ = allowed.at_once;
  if (is_begun_ && now > at_)
    left_ = std::min(allowed.at_once, left_ + in_seconds(now - at_) * allowed.per_second);
  is_begun_ = true;
  at_ = now;
  left_ -= amount;
  return left_ >= 0;
}

const MeterLimits& Http2Meter::limits() const {
  if (was_proven_) return kProvenMeter;
  return wire_ == Wire::kTls ? kUnprovenTlsMeter : kUnprovenMeter;
}

bool Http2Meter::took(std::string_view bytes, Time now) {
  if (is_refused_) return false;
  // Expenses before the proof do not count after it.
  if (!was_proven_ && is_proven_) {
    was_proven_ = true;
    reads_ = bytes_ = frames_ = streams_ = {};
  }
  const auto size = static_cast<double>(bytes.size());
  is_refused_ = !reads_.spend(1, limits().reads, now) || !bytes_.spend(size, limits().bytes, now) ||
                (wire_ == Wire::kClear && !parse(bytes, now));
  return !is_refused_;
}

bool Http2Meter::parse(std::string_view bytes, Time now) {
  while (!bytes.empty()) {
    if (preface_read_ < kHttp2Preface.size()) {
      if (bytes.front() != kHttp2Preface[preface_read_]) return false;
      ++preface_read_;
      bytes.remove_prefix(1);
    } else if (head_read_ < head_.size()) {
      head_[head_read_++] = static_cast<std::uint8_t>(bytes.front());
      bytes.remove_prefix(1);
      if (head_read_ == head_.size() && !begin_frame(now)) return false;
    } else {
      const std::size_t part = std::min<std::size_t>(payload_left_, bytes.size());
      payload_left_ -= static_cast<std::uint32_t>(part);
      bytes.remove_prefix(part);
    }
    if (head_read_ == head_.size() && payload_left_ == 0) head_read_ = 0;
  }
  return true;
}

bool Http2Meter::begin_frame(Time now) {
  const Http2Frame frame = read_frame_head(head_);
  payload_left_ = frame.length;
  const bool is_block = frame.kind == Http2Kind::kHeaders || frame.kind == Http2Kind::kContinuation;
  if (frame.kind == Http2Kind::kHeaders) block_ = 0;
  if (is_block) block_ += frame.length;
  const bool is_stream = frame.kind == Http2Kind::kHeaders || frame.kind == Http2Kind::kResetStream;
  if (is_first_frame_ && frame.kind != Http2Kind::kSettings) return false;
  is_first_frame_ = false;
  return frames_.spend(1, limits().frames, now) &&
         (!is_stream || streams_.spend(1, limits().streams, now)) &&
         (!is_block || block_ <= limits().header_block);
}

}  // namespace ddprun::rendezvous
