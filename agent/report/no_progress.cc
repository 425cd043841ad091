#include "agent/report/no_progress.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "agent/core/lifecycle.h"
#include "agent/report/repeated_deaths.h"
#include "base/shown_text.h"
#include "base/signal_name.h"
#include "rendezvous/core/progress.h"

namespace ddprun::agent {
namespace {

constexpr std::string_view kTraceback = "Traceback (most recent call last):";
// The line before a traceback of what ended nothing.
constexpr std::string_view kEndedNothing[] = {"Exception ignored ", "--- Logging error ---",
                                              "Error in atexit._run_exitfuncs"};
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

// `before`: the line before it.
bool is_head(std::string_view line, std::string_view before) {
  return without_rank(line).starts_with(kTraceback) &&
         std::ranges::none_of(kEndedNothing, [&](std::string_view words) {
           return without_rank(before).starts_with(words);
         });
}

// Returns the line that names the exception. Empty: the traceback has none, or there is none.
std::string_view end_of_traceback(const std::vector<std::string>& lines) {
  std::size_t head = lines.size();
  while (head > 0 && !is_head(lines[head - 1], head > 1 ? std::string_view(lines[head - 2]) : ""))
    --head;
  if (head == 0) return {};
  // All its other lines are indented.
  const auto last = std::find_if(lines.begin() + static_cast<std::ptrdiff_t>(head), lines.end(),
                                 [](const std::string& line) {
                                   const std::string_view text = without_rank(line);
                                   return !text.empty() && text.front() != ' ';
                                 });
  if (last == lines.end()) return {};
  const std::string_view text = without_rank(*last);
  return rendezvous::exception_of(text).empty() ? std::string_view() : text;
}

}  // namespace

std::string last_words(const std::vector<std::string>& lines) {
  if (const auto end = end_of_traceback(lines); !end.empty()) return std::string(end);
  const std::string said = last_said(lines);
  return said.empty() ? said : fmt::format("'{}'", said);
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
