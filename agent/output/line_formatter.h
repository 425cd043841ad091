// Makes the text of the tee'd streams of one kind (stdout or stderr). It goes to the console and
// into the node's filtered file. It adds prefixes, makes the text valid UTF-8, folds and filters.
// It writes nothing itself: TeeConsole takes the text and writes it. Pure; loop's thread; owned by
// TeeConsole.
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
  // If it is unset, there is no filtered file. Else a line that contains one of the texts goes
  // there too; every line contains the empty text.
  std::optional<std::vector<std::string>> filters{};
  bool fold = false;
  // How many workers' streams come here. A line that so many ranks wrote need not wait in folding.
  std::size_t streams = 1;
};

class LineFormatter {
 public:
  explicit LineFormatter(LineFormat plan);

  // Adds a line or a part of one. After the first part of a long line only pieces of the same
  // source may follow. This ends with its last part or interrupt(). Else two lines would be mixed.
  void show(const LineSource& source, const LinePiece& piece, Time now);
  // Ends the console line in the middle of a long line, because other streams want to write. The
  // next piece of the long line must say that it begins a line (LineSplitter::interrupt()).
  void interrupt();
  // Adds the lines that have waited long enough in folding.
  void time_passed(Time now);
  // Returns when to call time_passed() next. Time::max(): nothing is held back.
  Time look_again_at() const { return folder_ ? folder_->look_again_at() : Time::max(); }

  // Each takes what was added since its last call. That is the text for the console, and the text
  // for the filtered file. In the latter the bytes after the prefix are those of the worker,
  // unchanged.
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
  // The state of a long line:
  std::string cut_off_;            // the first bytes of a character that its last part cut in two
  bool long_is_filtered_ = false;  // goes to the filtered file; its first part decides
};

}  // namespace ddprun::agent
