// How the tee'd streams of one kind (stdout or stderr) look on the console and in the node's
// filtered file: prefixes, valid UTF-8, folding, filters. Pure: text in, text out.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "agent/core/clock.h"
#include "agent/output/line_folder.h"
#include "agent/output/line_splitter.h"

namespace ddprun::agent {

struct LineFormat {
  // Unset: nothing is filtered. A line with one of the texts in it is duplicated; the empty text is
  // in every line.
  std::optional<std::vector<std::string>> filters{};
  bool fold = false;
  std::size_t streams = 1;  // that are shown at once; folding waits for no more than that
};

class LineFormatter {
 public:
  explicit LineFormatter(LineFormat plan);

  // Between the first and the last part of a long line all pieces must be of its source.
  void show(const LineSource& source, const LinePiece& piece, Time now);
  // Ends the console line of a long line that goes on later.
  void interrupt();
  void time_passed(Time now);
  // Time::max(): nothing is held back.
  Time look_again_at() const { return folder_ ? folder_->look_again_at() : Time::max(); }

  // What came of it since the last call: for the console, and for the filtered file (as it came,
  // behind its prefix).
  std::string take_text();
  std::string take_filtered();

 private:
  void show_whole(const LineSource& source, std::string_view line, Time now);
  void show_part(const LineSource& source, const LinePiece& piece);
  bool matches(std::string_view line) const;

  LineFormat plan_;
  std::optional<LineFolder> folder_;
  std::string text_;
  std::string filtered_;
  // Of a long line:
  std::string cut_off_;            // the character that its last part ended within
  bool long_is_filtered_ = false;  // decided by its first part
};

}  // namespace ddprun::agent
