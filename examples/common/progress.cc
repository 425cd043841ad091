#include "examples/common/progress.h"

#include <fmt/format.h>

namespace ddprun::examples {
namespace {

// To the first column, then clear the line (ECMA-48: EL): the end of a longer line must not stay.
constexpr std::string_view kEraseLine = "\r\033[K";

}  // namespace

ProgressMode progress_mode(std::string_view word) {
  if (word == "always") return ProgressMode::kAlways;
  return word == "never" ? ProgressMode::kNever : ProgressMode::kAuto;
}

Progress::Progress(ProgressMode mode, bool stdout_is_terminal)
    : style_(mode == ProgressMode::kNever                          ? Style::kNoSteps
             : mode == ProgressMode::kAlways || stdout_is_terminal ? Style::kRewrite
                                                                   : Style::kPlain) {}

std::string Progress::step(std::string_view text) {
  if (style_ == Style::kNoSteps) return {};
  if (style_ == Style::kPlain) return fmt::format("{}\n", text);
  step_on_screen_ = true;
  return fmt::format("{}{}", kEraseLine, text);
}

std::string Progress::line(std::string_view text) {
  const bool erase = step_on_screen_;
  step_on_screen_ = false;
  return fmt::format("{}{}\n", erase ? kEraseLine : "", text);
}

}  // namespace ddprun::examples
