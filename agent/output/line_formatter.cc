#include "agent/output/line_formatter.h"

#include <algorithm>
#include <utility>

#include "agent/output/console_text.h"

namespace ddprun::agent {

LineFormatter::LineFormatter(LineFormat plan) : plan_(std::move(plan)) {
  if (plan_.fold) folder_.emplace(plan_.streams);
}

void LineFormatter::show(const LineSource& source, const LinePiece& piece, Time now) {
  if (piece.begins && piece.ends) {
    show_whole(source, piece.text, now);
  } else {
    show_part(source, piece);
  }
}

// The filtered file gets the line at once and never folded: it must have the lines of every rank.
void LineFormatter::show_whole(const LineSource& source, std::string_view line, Time now) {
  if (matches(line)) (((filtered_ += source.prefix) += line) += '\n');
  if (folder_) {
    folder_->take(source, line, now);
    folder_->append_due(text_, now);
    return;
  }
  text_ += source.prefix;
  append_whole_utf8(text_, line);
  text_ += '\n';
}

// Parts of a long line are never folded, since the folder needs whole lines.
void LineFormatter::show_part(const LineSource& source, const LinePiece& piece) {
  if (piece.begins) {
    // Earlier lines of the same source may still wait in the folder. They must be shown first.
    if (folder_) folder_->append_due(text_, Time::max());
    text_ += source.prefix;
    // Later parts are not searched. The text of a filter may stand in any of them, but the file
    // must get the whole line.
    long_is_filtered_ = matches(piece.text);
    if (long_is_filtered_) filtered_ += source.prefix;
  }
  if (long_is_filtered_) filtered_ += piece.text;
  // A part may end within a character of several bytes. Its first bytes wait for the next part;
  // otherwise both halves would be shown as U+FFFD.
  std::string joined;
  std::string_view text = piece.text;
  if (!cut_off_.empty()) text = joined = std::exchange(cut_off_, {}).append(piece.text);
  cut_off_ = text.substr(text.size() - append_utf8(text_, text));
  if (piece.ends) interrupt();
}

void LineFormatter::interrupt() {
  append_whole_utf8(text_, std::exchange(cut_off_, {}));
  text_ += '\n';
  if (std::exchange(long_is_filtered_, false)) filtered_ += '\n';
}

void LineFormatter::time_passed(Time now) {
  if (folder_) folder_->append_due(text_, now);
}

std::string LineFormatter::take_text() { return std::exchange(text_, {}); }
std::string LineFormatter::take_filtered() { return std::exchange(filtered_, {}); }

bool LineFormatter::matches(std::string_view line) const {
  return plan_.filters &&
         std::any_of(plan_.filters->begin(), plan_.filters->end(), [&](const std::string& text) {
           return line.find(text) != std::string_view::npos;
         });
}

}  // namespace ddprun::agent
