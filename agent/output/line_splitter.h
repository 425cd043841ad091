// Cuts a tee'd stream into lines for the console. The worker's file does not come through here: it
// gets the bytes untouched. A line ends at '\n'. A progress bar overwrites its line with carriage
// returns. Its last state is shown, and while it runs, one state every kUpdateEvery. A line that is
// too long to be held back comes in parts. Pure; loop's thread; owned by TeeSink, one per stream.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <string_view>

#include "agent/core/clock.h"

namespace ddprun::agent {

// The most text without a newline that is held back for one stream. A longer line is passed on as
// it comes. Until it ends, no other stream may write to the console (console_turn.h).
inline constexpr std::size_t kHeldLineBytes = std::size_t{64} << 10;
// Each state that is shown is a line of its own. If all states were shown, one rank's progress bar
// would push the others' lines from the screen.
inline constexpr std::chrono::seconds kUpdateEvery{1};

// A whole line (`begins` and `ends`), or a part of one; without its newline.
struct LinePiece {
  std::string_view text;
  bool begins = true;
  bool ends = true;
};

class LineSplitter {
 public:
  // Removes the next piece from the front of `bytes` and returns it. None if `bytes` is used up;
  // call again when more bytes have come. The piece's text is valid until the next call of next()
  // or finish(). It is valid no longer than the bytes that `bytes` points to.
  std::optional<LinePiece> next(std::string_view& bytes, Time now);
  // Call at the end of the stream. Returns the unfinished last line, if there is one.
  std::optional<LinePiece> finish();

  // True between the first and the last part of a long line, also after interrupt().
  bool in_long_line() const { return in_long_line_; }
  // Others write in the middle of the long line. So its next part begins a line on the console.
  void interrupt() { interrupted_ = in_long_line_; }

 private:
  LinePiece part(std::string_view text, bool ends);
  std::optional<LinePiece> whole(std::string_view end_of_line);
  std::optional<LinePiece> hold(std::string_view text, Time now);
  std::optional<LinePiece> take_update(Time now);

  // The line that has no newline yet. A read that completes a state of a progress bar may leave it
  // longer than kHeldLineBytes until the next read.
  std::string partial_;
  std::string piece_;  // the text of the last piece, unless that is in the caller's bytes
  bool in_long_line_ = false;
  bool interrupted_ = false;
  bool update_shown_ = false;            // a state of the line that has no newline yet was shown
  std::optional<Time> update_shown_at_;  // when a state was shown last, of any line
};

}  // namespace ddprun::agent
