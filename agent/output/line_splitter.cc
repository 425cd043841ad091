#include "agent/output/line_splitter.h"

#include <utility>

#include "agent/output/console_text.h"

namespace ddprun::agent {

std::optional<LinePiece> LineSplitter::next(std::string_view& bytes, Time now) {
  while (!bytes.empty()) {
    const std::size_t newline = bytes.find('\n');
    const bool ends = newline != std::string_view::npos;
    const std::string_view text = bytes.substr(0, newline);
    bytes.remove_prefix(ends ? newline + 1 : bytes.size());
    if (in_long_line_) return part(text, ends);
    if (const auto piece = ends ? whole(text) : hold(text, now)) return piece;
  }
  return std::nullopt;
}

std::optional<LinePiece> LineSplitter::finish() {
  if (in_long_line_) return part({}, true);
  return partial_.empty() ? std::nullopt : whole({});
}

LinePiece LineSplitter::part(std::string_view text, bool ends) {
  in_long_line_ = !ends;
  return {.text = text, .begins = std::exchange(interrupted_, false), .ends = ends};
}

// The line that has got its newline. None if a progress bar's last state has been shown already,
// and the newline alone would show an empty line.
std::optional<LinePiece> LineSplitter::whole(std::string_view end_of_line) {
  std::string_view line = end_of_line;
  if (!partial_.empty()) {
    partial_ += end_of_line;
    std::swap(piece_, partial_);
    partial_.clear();
    line = piece_;
  }
  const std::string_view text = last_update(line);
  if (std::exchange(update_shown_, false) && text.empty()) return std::nullopt;
  return LinePiece{.text = text};
}

// Keeps text that has no newline yet. Returns a state of a progress bar if it is time for one. Or
// returns the first part of a line that has become too long.
std::optional<LinePiece> LineSplitter::hold(std::string_view text, Time now) {
  partial_ += text;
  if (text.find('\r') != std::string_view::npos) {
    if (const auto update = take_update(now)) return update;
  }
  if (partial_.size() < kHeldLineBytes) return std::nullopt;
  in_long_line_ = true;
  std::swap(piece_, partial_);
  partial_.clear();
  return LinePiece{.text = piece_, .ends = false};
}

// Keeps only the last of the states that are overwritten already, or shows it if its time has come.
// So the bar of a long run does not pile up in memory.
std::optional<LinePiece> LineSplitter::take_update(Time now) {
  const std::size_t begin = partial_.rfind('\r') + 1;
  const std::string_view overwritten = last_update(std::string_view(partial_).substr(0, begin));
  const std::string_view current = std::string_view(partial_).substr(begin);
  const bool due = !update_shown_at_ || now - *update_shown_at_ >= kUpdateEvery;
  // `overwritten` and `current` point into partial_: copy them before partial_ changes.
  if (overwritten.empty() || due) {
    piece_ = overwritten;
    partial_ = std::string(current);
  } else {
    partial_ = std::string(overwritten) + '\r' + std::string(current);
  }
  if (overwritten.empty() || !due) return std::nullopt;
  update_shown_ = true;
  update_shown_at_ = now;
  return LinePiece{.text = piece_};
}

}  // namespace ddprun::agent
