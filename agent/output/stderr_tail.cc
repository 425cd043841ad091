#include "agent/output/stderr_tail.h"

#include <algorithm>

#include "agent/output/console_text.h"

namespace ddprun::agent {
namespace {

std::string_view end_of(std::string_view text) {
  return text.substr(text.size() - std::min(text.size(), kTailBytes));
}

}  // namespace

void StderrTail::take(std::string_view bytes) {
  kept_ += end_of(bytes);
  if (kept_.size() >= 2 * kTailBytes) kept_.erase(0, kept_.size() - kTailBytes);
}

std::vector<std::string> StderrTail::lines() const { return last_lines(end_of(kept_), kTailLines); }

}  // namespace ddprun::agent
