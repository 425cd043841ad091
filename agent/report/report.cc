#include "agent/report/report.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <ctime>
#include <map>
#include <string_view>
#include <utility>

#include "base/limit_hint.h"
#include "base/number_ranges.h"
#include "base/shown_text.h"
#include "base/signal_name.h"

namespace ddprun::agent {
namespace {

using SystemTime = std::chrono::system_clock::time_point;

constexpr std::size_t kRuleWidth = 60;  // torchrun's upper limit
// Further failures that are listed; the rest are counted.
constexpr std::size_t kListedFailures = 4;
// The file system's clock lags the system's by up to a tick. A record counts as earlier than a
// death only beyond this.
constexpr std::chrono::milliseconds kClearlyBefore{10};

// torchrun's words for a worker that recorded nothing.
constexpr const char* kNoTraceback =
    "To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html";

// One line of the report. If there are too many, those with the highest `spare` are left out first;
// 0 is never left out.
struct Line {
  std::string text;
  int spare = 0;
};
using Lines = std::vector<Line>;

std::string local_time(SystemTime when) {
  const std::time_t seconds = std::chrono::system_clock::to_time_t(when);
  std::tm broken_down{};
  ::localtime_r(&seconds, &broken_down);
  return fmt::format("{:%Y-%m-%d_%H:%M:%S}", broken_down);
}

// When the worker failed: the time that it recorded, else the time of its death.
SystemTime failed_at(const ReportedWorker& worker) {
  if (worker.record && worker.record->unix_seconds)
    return SystemTime(std::chrono::seconds(*worker.record->unix_seconds));
  return worker.when;
}

std::string exit_text(const WorkerExit& exit) {
  if (!exit.start_error.empty()) return fmt::format("{} (never started)", exit.exit_code);
  if (exit.exit_code < 0)
    return fmt::format("{} (pid: {}) ({})", exit.exit_code, exit.pid, signal_name(-exit.exit_code));
  return fmt::format("{} (pid: {})", exit.exit_code, exit.pid);
}

// Text from others as it may stand in a line. A tab stays: programs indent by it, and it leads
// nowhere but to the right.
std::string printable(std::string_view text) {
  std::string shown;
  for (;;) {
    const std::size_t tab = std::min(text.find('\t'), text.size());
    shown += shown_text(text.substr(0, tab));
    if (tab == text.size()) return shown;
    shown += '\t';
    text.remove_prefix(tab + 1);
  }
}

// The same, cut to kQuotedLineBytes: a worker's line may be very long.
std::string excerpt(std::string_view line) {
  std::string text = printable(line);
  if (text.size() <= kQuotedLineBytes) return text;
  const auto continues = [](char byte) {
    return (static_cast<unsigned char>(byte) & 0xC0) == 0x80;
  };
  std::size_t end = kQuotedLineBytes;
  while (continues(text[end])) --end;  // not in the midst of a character
  return text.substr(0, end) + "…";
}

std::vector<std::string> split_lines(std::string_view text) {
  std::vector<std::string> lines;
  while (!text.empty()) {
    const auto end = std::min(text.find('\n'), text.size());
    lines.emplace_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return lines;
}

// Returns at most `most` lines: the first one and the last ones, with a note between them. The note
// takes a line too, so one more line than necessary is left out.
std::vector<std::string> shortened(std::vector<std::string> lines, std::size_t most) {
  if (lines.size() <= most) return lines;
  const std::size_t left_out = lines.size() - most;
  lines.erase(lines.begin() + 1, lines.begin() + 2 + static_cast<std::ptrdiff_t>(left_out));
  lines.insert(lines.begin() + 1, fmt::format("  … {} lines left out …", left_out + 1));
  return lines;
}

// One line for all workers that we stopped, grouped by exit code. So a job of many workers does not
// fill the screen. Exit codes come before signals.
void add_stopped(Lines& lines, const ReportFacts& facts, std::size_t cause) {
  std::map<int, std::vector<int>, std::greater<>> by_code;
  for (std::size_t i = 0; i < facts.workers.size(); ++i) {
    const ReportedWorker& worker = facts.workers[i];
    if (i != cause && worker.worker.stopped_by_us)
      by_code[worker.worker.exit.exit_code].push_back(worker.rank);
  }
  std::string text;
  for (auto& [code, ranks] : by_code) {
    std::sort(ranks.begin(), ranks.end());
    text +=
        fmt::format("{}{} {} (exitcode {})", text.empty() ? "Stopped by ddprun after that: " : ", ",
                    ranks.size() == 1 ? "rank" : "ranks", number_ranges(ranks, ", "), code);
  }
  if (!text.empty()) lines.push_back({text});
}

// The other workers that failed by themselves. At most kListedFailures are named. If there are
// none, the heading says nothing and may be left out.
void add_other_failures(Lines& lines, const ReportFacts& facts, std::size_t cause) {
  std::size_t others = 0;
  lines.push_back({"Failures:", 2});
  const std::size_t heading = lines.size() - 1;
  for (std::size_t i = 0; i < facts.workers.size(); ++i) {
    const ReportedWorker& worker = facts.workers[i];
    if (i == cause || worker.worker.stopped_by_us) continue;
    if (++others > kListedFailures) continue;
    lines.push_back(
        {fmt::format("  [{}]: rank {} (local_rank: {}) exitcode: {}", others, worker.rank,
                     worker.worker.exit.local_rank, exit_text(worker.worker.exit))});
  }
  if (others > kListedFailures)
    lines.push_back({fmt::format("  … and {} more", others - kListedFailures)});
  if (others == 0) {
    lines.push_back({"  <NO_OTHER_FAILURES>", 2});
  } else {
    lines[heading].spare = 0;
  }
}

// With a restart window a job may have more attempts than the budget of one window. Then "6 of 4"
// would be wrong, and only the number is shown.
std::string attempt_text(const ReportFacts& facts) {
  return facts.restarts > facts.max_restarts
             ? fmt::format("{}", facts.restarts + 1)
             : fmt::format("{} of {}", facts.restarts + 1, facts.max_restarts + 1);
}

// Returns whether a line of a worker's text could be taken for one of the report. It stands deeper,
// then.
bool looks_like_ours(std::string_view text) {
  constexpr std::array kOurs{"time  ",     "host  ",     "rank  ",   "exitcode",  "error_file",
                             "run time",   "traceback ", "stderr  ", "core dump", "memory  ",
                             "ended  ",    "[",          "<",        "Failures:", "Root Cause",
                             "Stopped by", "---",        "==="};
  return std::ranges::any_of(kOurs, [&](const char* own) { return text.starts_with(own); });
}

// Whether the evidence tells who sent the signal that ended the worker. It is then part of the
// reason.
bool explains_signal(const ReportedWorker& worker) {
  const WorkerExit& exit = worker.worker.exit;
  return exit.exit_code == -SIGKILL || (exit.exit_code < 0 && !exit.ended_for.empty());
}

// Adds the lines about the root cause. The labels are torchrun's, except "run time".
void add_cause(Lines& lines, const ReportFacts& facts, const ReportedWorker& worker) {
  const WorkerExit& exit = worker.worker.exit;
  const std::chrono::duration<double> ran = worker.worker.ended - worker.worker.started;
  lines.push_back({"Root Cause (first observed failure):"});
  lines.push_back({"[0]:", 3});
  lines.push_back({fmt::format("  time      : {}", local_time(failed_at(worker)))});
  lines.push_back({fmt::format("  host      : {}", facts.hostname)});
  lines.push_back({fmt::format("  rank      : {} (local_rank: {})", worker.rank, exit.local_rank)});
  lines.push_back({fmt::format("  exitcode  : {}", exit_text(exit))});
  lines.push_back(
      {fmt::format("  error_file: {}", worker.error_file.empty() ? "<N/A>" : worker.error_file),
       worker.error_file.empty() ? 1 : 0});
  lines.push_back({fmt::format("  run time  : {:.3f} s in attempt {}, node rank {}, role {}",
                               ran.count(), attempt_text(facts), facts.node_rank, facts.role)});
  if (!explains_signal(worker) && !worker.evidence.empty())
    lines.push_back({fmt::format("  {}: {}", exit.ended_for.empty() ? "memory    " : "ended     ",
                                 worker.evidence)});
  if (!worker.core_dump.empty())
    lines.push_back({fmt::format("  core dump : {}", worker.core_dump)});
  std::string_view label = "  traceback : ";
  for (const std::string& line : shortened(split_lines(reason_of(worker)), kQuotedTraceLines)) {
    const std::string text = excerpt(line);
    const bool is_first = label != "  ";
    lines.push_back(
        {fmt::format("{}{}{}", label, !is_first && looks_like_ours(text) ? "    " : "", text)});
    label = "  ";
  }
}

// The last lines of the worker's stderr, without the last traceback if its record has one. Python
// prints the same text to stderr, and it would be shown twice.
std::vector<std::string> unshown_stderr(const ReportedWorker& worker) {
  std::vector<std::string> lines = worker.stderr_end;
  if (!worker.record || worker.record->trace.empty()) return lines;
  const auto head = std::find_if(lines.rbegin(), lines.rend(), [](const std::string& line) {
    return line.starts_with("Traceback (most recent call last):");
  });
  if (head != lines.rend()) lines.erase(std::prev(head.base()), lines.end());
  return lines;
}

void add_stderr(Lines& lines, const std::vector<std::string>& text, std::size_t room) {
  const std::size_t quoted = std::min({text.size(), kQuotedStderrLines, room});
  for (auto line = text.end() - static_cast<std::ptrdiff_t>(quoted); line != text.end(); ++line)
    lines.push_back({fmt::format("  stderr    | {}", excerpt(*line))});
}

// Leaves lines out until there are at most `most`, or no line is left that can be spared.
void fit(Lines& lines, std::size_t most) {
  for (int spare = 4; spare > 0 && lines.size() > most; --spare)
    std::erase_if(lines, [spare](const Line& line) { return line.spare == spare; });
}

}  // namespace

std::optional<std::size_t> root_cause(const ReportFacts& facts) {
  const auto& workers = facts.workers;
  const auto by_itself = [](const ReportedWorker& worker) { return !worker.worker.stopped_by_us; };
  const auto first = std::find_if(workers.begin(), workers.end(), by_itself);
  if (first == workers.end()) return std::nullopt;
  // Start with the first death. A worker whose record is clearly older takes its place. It may have
  // failed first and hung at its exit, while another died because of it.
  auto cause = first;
  SystemTime earliest =
      first->recorded_at ? std::min(first->when, *first->recorded_at) : first->when;
  for (auto worker = workers.begin(); worker != workers.end(); ++worker) {
    if (!worker->record || !worker->recorded_at) continue;
    if (*worker->recorded_at + kClearlyBefore > earliest) continue;
    earliest = *worker->recorded_at;
    cause = worker;
  }
  return static_cast<std::size_t>(cause - workers.begin());
}

std::string reason_of(const ReportedWorker& worker) {
  const WorkerExit& exit = worker.worker.exit;
  if (worker.record && !worker.record->trace.empty()) return worker.record->trace;
  if (worker.record && !worker.record->message.empty()) return worker.record->message;
  if (!exit.start_error.empty()) return "the worker could not be started: " + exit.start_error;
  if (exit.exec_errno != 0) {
    // ENOENT has other causes too, and the user may see that the file itself is there (execve(2)).
    const char* hint = exit.exec_errno == ENOENT ? " (itself, its #! interpreter or loader)" : "";
    return fmt::format("the program could not be started: {}{}", describe_errno(exit.exec_errno),
                       hint);
  }
  if (exit.exit_code < 0) {
    const bool is_explained = explains_signal(worker) && !worker.evidence.empty();
    return fmt::format("Signal {} ({}) received by PID {}{}{}", -exit.exit_code,
                       signal_name(-exit.exit_code), exit.pid, is_explained ? ": " : "",
                       is_explained ? worker.evidence : "");
  }
  return kNoTraceback;
}

std::string reason_on_record(const ReportedWorker& worker) {
  std::string reason = reason_of(worker);
  if (reason != kNoTraceback) return reason;
  const WorkerExit& exit = worker.worker.exit;
  return fmt::format("rank {} (local rank {}, pid {}) exited with code {}{}{}", worker.rank,
                     exit.local_rank, exit.pid, exit.exit_code, worker.evidence.empty() ? "" : ": ",
                     worker.evidence);
}

std::string failure_report(const ReportFacts& facts) {
  const auto index = root_cause(facts);
  if (!index) return {};
  const ReportedWorker& cause = facts.workers[*index];
  const std::string thick(kRuleWidth, '=');
  const std::string thin(kRuleWidth, '-');
  Lines lines = {{thick, 1}, {facts.entry + " FAILED"}, {thin, 4}};
  add_other_failures(lines, facts, *index);
  lines.push_back({thin, 4});
  add_cause(lines, facts, cause);
  Lines end;
  add_stopped(end, facts, *index);
  end.push_back({thick, 1});
  const std::vector<std::string> stderr_end = unshown_stderr(cause);
  const std::size_t quoted = std::min(stderr_end.size(), kQuotedStderrLines);
  const std::size_t wanted = lines.size() + end.size() + quoted;
  // First lines that say little go. Then the quoted stderr gets what is left of the screen.
  if (wanted > kReportLines) {
    const std::size_t room = kReportLines - std::min(quoted, kReportLines);
    end.back().spare = 3;  // the closing rule; the one at the top is enough
    fit(end, 1);
    fit(lines, room - std::min(end.size(), room));
  }
  add_stderr(lines, stderr_end, kReportLines - std::min(lines.size() + end.size(), kReportLines));
  lines.insert(lines.end(), end.begin(), end.end());
  std::string text;
  for (const Line& line : lines) text += printable(line.text) + "\n";
  return text;
}

std::string shown_on_console(const std::string& line) { return excerpt(line); }

std::string ending_text(const Ending& ending) {
  if (ending.drained) return "an operator drained this node; the workers were stopped";
  if (ending.stopped && ending.cause)
    return shown_text(ending.cause->message) + "; the workers were stopped";
  if (!ending.noticed.empty())
    return fmt::format("{} on {}; the workers were asked to save and end",
                       signal_name(ending.signal), shown_text(ending.noticed));
  if (ending.signal != 0)
    return fmt::format("received {}; the workers were stopped", signal_name(ending.signal));
  if (ending.session_error) return shown_text(ending.session_error->message());
  return "the job failed" +
         (ending.cause ? ": " + shown_text(ending.cause->message) : std::string());
}

}  // namespace ddprun::agent
