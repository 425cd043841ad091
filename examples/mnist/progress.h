// What rank 0 writes while it trains: a step line that a terminal rewrites in place, plain lines
// elsewhere. Pure: answers the bytes to write; the caller writes and flushes them.
#pragma once

#include <string>
#include <string_view>

#include "examples/mnist/options.h"

namespace ddprun::examples {

class Progress {
 public:
  Progress(ProgressMode mode, bool stdout_is_terminal);

  // A passing state; the next call may replace it. Empty where steps are not shown.
  std::string step(std::string_view text);

  // A result, to stay.
  std::string line(std::string_view text);

 private:
  enum class Style { kRewrite, kPlain, kNoSteps };
  Style style_;
  bool step_on_screen_ = false;  // the cursor stands behind a step line that has no newline yet
};

}  // namespace ddprun::examples
