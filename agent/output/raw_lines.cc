#include "agent/output/raw_lines.h"

#include <utility>

#include "agent/output/line_splitter.h"

namespace ddprun::agent {

std::string RawLines::take(std::string_view bytes, Time now) {
  std::string out;
  const std::size_t whole = bytes.rfind('\n') + 1;  // 0: no line ends here
  if (whole > 0) {
    out = std::exchange(held_, {});
    out += bytes.substr(0, whole);
    in_long_line_ = false;
  }
  const std::string_view rest = bytes.substr(whole);
  if (held_.empty()) held_since_ = now;
  held_ += rest;
  if (held_.size() >= kHeldLineBytes) in_long_line_ = true;
  if (in_long_line_) out += std::exchange(held_, {});
  return out;
}

std::string RawLines::time_passed(Time now) {
  return now < look_again_at() ? "" : std::exchange(held_, {});
}

std::string RawLines::finish() {
  in_long_line_ = false;
  return std::exchange(held_, {});
}

Time RawLines::look_again_at() const {
  return held_.empty() ? Time::max() : held_since_ + kPartialLineWait;
}

}  // namespace ddprun::agent
