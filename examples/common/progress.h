// The lines of rank 0 while it trains. On a terminal a step line replaces the one before; elsewhere
// each is a line of its own. Pure: returns the bytes, and the caller writes and flushes them.
// Training owns it. One thread.
#pragma once

#include <string>
#include <string_view>

namespace ddprun::examples {

// kAuto: it depends on whether stdout is a terminal.
enum class ProgressMode { kAuto, kAlways, kNever };

// Reads "auto", "always" or "never".
ProgressMode progress_mode(std::string_view word);

class Progress {
 public:
  Progress(ProgressMode mode, bool stdout_is_terminal);

  // The bytes that show a step. The next call may replace them. Empty if steps are not shown.
  std::string step(std::string_view text);

  // The bytes of a result: a line that stays.
  std::string line(std::string_view text);

 private:
  enum class Style { kRewrite, kPlain, kNoSteps };
  Style style_;
  bool step_on_screen_ = false;  // the cursor stands behind a step line that has no newline yet
};

}  // namespace ddprun::examples
