// Cuts a tee'd stream into lines for the console; the file gets the bytes untouched. A line ends at
// '\n'. Of a line that is overwritten by carriage returns (a progress bar) the last state is shown,
// and while it runs, a state each kUpdateEvery. A line too long to be held back comes in parts.
// Pure.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <string_view>

#include "agent/core/clock.h"

namespace ddprun::agent {

// Text without a newline that is held back per stream. A longer line is passed on as it comes, and
// nobody else may write to the console meanwhile (console_turn.h).
inline constexpr std::size_t kHeldLineBytes = std::size_t{64} << 10;
// A progress bar of one rank must not push the lines of the others from the screen.
inline constexpr std::chrono::seconds kUpdateEvery{1};

// A whole line (begins and ends), or a part of one. Without its newline.
struct LinePiece {
  std::string_view text;
  bool begins = true;
  bool ends = true;
};

class LineSplitter {
 public:
  // Takes from the front of `bytes` up to the end of the next piece. None: `bytes` is used up. The
  // piece's text lives until the next call or as long as `bytes`.
  std::optional<LinePiece> next(std::string_view& bytes, Time now);
  // The rest, at the end of the stream: an unfinished last line is shown as one.
  std::optional<LinePiece> finish();

  // True between the first and the last part of a long line.
  bool in_long_line() const { return in_long_line_; }
  // The long line was cut off by others' lines: its next part begins a line.
  void interrupt() { interrupted_ = in_long_line_; }

 private:
  LinePiece part(std::string_view text, bool ends);
  std::optional<LinePiece> whole(std::string_view end_of_line);
  std::optional<LinePiece> hold(std::string_view text, Time now);
  std::optional<LinePiece> take_update(Time now);

  std::string partial_;  // the line that has no newline yet; below kHeldLineBytes
  std::string piece_;    // what the last piece refers to, where that was not in the caller's bytes
  bool in_long_line_ = false;
  bool interrupted_ = false;
  bool update_shown_ = false;  // of the line that has no newline yet
  std::optional<Time> update_shown_at_;
};

}  // namespace ddprun::agent
