#include "agent/report/no_progress.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "agent/core/lifecycle.h"
#include "agent/report/repeated_deaths.h"
#include "base/shown_text.h"
#include "base/signal_name.h"

namespace ddprun::agent {
namespace {

constexpr std::string_view kTraceback = "Traceback (most recent call last):";
// The most columns of the last one: a line should fit a terminal.
constexpr std::size_t kMostColumns = 60;

std::string_view without_rank(std::string_view line) {
  const auto end = line.find("]: ");
  const bool is_tagged = line.starts_with("[rank") && end != std::string_view::npos;
  return is_tagged ? line.substr(end + 3) : line;
}

std::string cause_of(const rendezvous::Failure& cause) {
  if (cause.rank < 0) return cause.message;
  const std::string how = cause.exit_code < 0 ? signal_name(-cause.exit_code)
                                              : fmt::format("exit code {}", cause.exit_code);
  return cause.words.empty() ? how : fmt::format("{}: {}", how, cause.words);
}

std::string shortened(const std::string& text) {
  std::string shown = shown_text(text);
  if (shown.size() <= kMostColumns) return shown;
  std::size_t end = kMostColumns;
  while (end > 0 && (static_cast<unsigned char>(shown[end]) & 0xC0U) == 0x80U) --end;
  return shown.substr(0, end) + "…";
}

}  // namespace

std::string last_words(const std::vector<std::string>& lines) {
  const auto head = std::find_if(lines.rbegin(), lines.rend(), [](const std::string& line) {
    return without_rank(line).starts_with(kTraceback);
  });
  if (head == lines.rend()) return last_said(lines);
  // All lines of a traceback are indented, but the one that names the exception.
  const auto last = std::find_if(head.base(), lines.end(), [](const std::string& line) {
    const std::string_view text = without_rank(line);
    return !text.empty() && text.front() != ' ';
  });
  return last == lines.end() ? last_said(lines) : std::string(without_rank(*last));
}

std::string no_progress_text(const rendezvous::NoProgress& why, const std::string& called) {
  std::string text = fmt::format(
      "{}: no progress in {} attempts: {}\n{:>9}  {:<20} {:>5} {:>9}  {}\n", called, why.attempts,
      shown_text(why.sentence), "attempt", "node", "rank", "step", "ended by");
  for (const auto& [round, cause] : why.last)
    text += fmt::format("{:>9}  {:<20} {:>5} {:>9}  {}\n", round, shortened(cause.hostname),
                        cause.rank < 0 ? "-" : std::to_string(cause.rank),
                        cause.step ? std::to_string(*cause.step) : "-", shortened(cause_of(cause)));
  return text;
}

}  // namespace ddprun::agent
