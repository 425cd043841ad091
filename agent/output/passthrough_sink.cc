#include "agent/output/passthrough_sink.h"

#include <algorithm>
#include <utility>

#include "agent/output/console_text.h"
#include "agent/output/line_splitter.h"

namespace ddprun::agent {
namespace {

std::string_view end_of(std::string_view text) {
  return text.substr(text.size() - std::min(text.size(), kTailBytes));
}

}  // namespace

// Passes on everything up to the last newline, and holds the rest. The bytes of a long line are not
// held. They are passed on as they come.
std::string LineJoiner::take(std::string_view bytes, Time now) {
  std::string out;
  const std::size_t whole = bytes.rfind('\n') + 1;  // 0: no line ends here
  if (whole > 0) {
    out = std::exchange(held_, {});
    out += bytes.substr(0, whole);
    in_long_line_ = false;
  }
  const std::string_view rest = bytes.substr(whole);
  // The time counts from the first held byte. A bar that writes often must not put off its own
  // showing.
  if (held_.empty()) held_since_ = now;
  held_ += rest;
  if (held_.size() >= kHeldLineBytes) in_long_line_ = true;
  if (in_long_line_) out += std::exchange(held_, {});
  return out;
}

std::string LineJoiner::time_passed(Time now) {
  return now < look_again_at() ? "" : std::exchange(held_, {});
}

std::string LineJoiner::finish() {
  in_long_line_ = false;
  return std::exchange(held_, {});
}

Time LineJoiner::look_again_at() const {
  return held_.empty() ? Time::max() : held_since_ + kPartialLineWait;
}

void StderrTail::take(std::string_view bytes) {
  kept_ += end_of(bytes);
  if (kept_.size() >= 2 * kTailBytes) kept_.erase(0, kept_.size() - kTailBytes);
}

std::vector<std::string> StderrTail::lines() const { return last_lines(end_of(kept_), kTailLines); }

}  // namespace ddprun::agent
