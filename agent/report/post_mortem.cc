#include "agent/report/post_mortem.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <utility>

#include "agent/core/exit_code.h"
#include "agent/report/core_dump.h"
#include "agent/report/record_file.h"
#include "base/file_handle.h"
#include "base/log.h"

namespace ddprun::agent {
namespace {

using SystemClock = std::chrono::system_clock;

// The most bytes of a worker's stderr in a record of ours. Kubernetes cuts a termination message at
// 4,096 bytes; the rest is for the reason and the JSON around it.
constexpr std::size_t kQuotedRecordBytes = 3000;

// The content of an error file. Nothing if it is absent, too long, or no regular file. The worker
// chose it, and reading a FIFO would hang the agent.
std::optional<std::string> read_record(const std::string& path) {
  // Through no link. A worker may run as another user, and the link may lead to a file that only we
  // may read.
  const FileHandle file(::open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  struct stat facts {};
  if (file.get() < 0 || ::fstat(file.get(), &facts) != 0 || !S_ISREG(facts.st_mode) ||
      facts.st_size > static_cast<off_t>(kMaxErrorRecordBytes))
    return std::nullopt;
  std::string text(static_cast<std::size_t>(facts.st_size), '\0');
  const ssize_t got = ::pread(file.get(), text.data(), text.size(), 0);
  if (got < 0) return std::nullopt;
  text.resize(static_cast<std::size_t>(got));
  return text;
}

// When the file was last written, by the file system's clock. The epoch if the file is gone.
SystemClock::time_point written_at(const std::string& path) {
  struct stat facts {};
  if (::stat(path.c_str(), &facts) != 0) return {};
  return SystemClock::time_point(std::chrono::duration_cast<SystemClock::duration>(
      std::chrono::seconds(facts.st_mtim.tv_sec) +
      std::chrono::nanoseconds(facts.st_mtim.tv_nsec)));
}

// A record that cannot be written must not change how the job ends: it is only logged.
void leave_record(const std::string& path, const std::string& text) {
  if (const auto written = write_record(path, text); !written)
    log::error(written.error().message());
}

// The record for a worker that wrote none: the reason and the last lines of its stderr. A cluster
// shows this text to its users. If the lines are too long, the last ones are kept: they tell most.
ErrorRecord record_for(const ReportedWorker& worker) {
  std::string last_words;
  for (auto line = worker.stderr_end.rbegin(); line != worker.stderr_end.rend(); ++line) {
    const std::size_t room = kQuotedRecordBytes - last_words.size();
    const bool fits = line->size() < room;
    last_words.insert(0, "\n").insert(0, fits ? *line : line->substr(line->size() - room));
    if (!fits) break;
  }
  std::string message = reason_on_record(worker);
  if (!last_words.empty()) message += "\nLast lines of its stderr:\n" + last_words;
  return {.message = std::move(message), .unix_seconds = SystemClock::to_time_t(worker.when)};
}

// Returns whether the worker tells of a child that got SIGKILL.
bool says_killed(const ReportedWorker& worker) {
  const int exit_code = worker.worker.exit.exit_code;
  if (exit_code == kExitSignalBase + SIGKILL) return true;  // as shells pass it on
  const auto& words = worker.stderr_end;
  return std::any_of(words.begin(), words.end(), is_word_of_a_kill) ||
         (worker.record && is_word_of_a_kill(worker.record->message));
}

}  // namespace

PostMortem::PostMortem(const AgentConfig& config, const WorkerFiles& files)
    : config_(config), files_(files) {}

Result<void> PostMortem::check() const {
  const std::string& path = config_.error_report;
  if (path.empty()) return {};
  const auto can = can_write_record(path);
  if (can) return {};
  return Error(ErrorCode::kInvalidArgument,
               fmt::format("--error-report={}: expected a file in a folder that can be written: {}",
                           path, can.error().message()));
}

ReportFacts PostMortem::examine(const Lifecycle& lifecycle, const std::string& hostname) {
  const rendezvous::Round& round = lifecycle.round();
  if (!lifecycle.had_round())  // the job ended before its first round
    return {.entry = config_.entry, .hostname = hostname, .run_id = config_.rendezvous.run_id};
  const rendezvous::Seat& seat = lifecycle.seat();
  ReportFacts facts{.entry = config_.entry,
                    .hostname = hostname,
                    .role = config_.role,
                    .run_id = config_.rendezvous.run_id,
                    .node_rank = seat.node_rank,
                    .restarts = round.restart_count,
                    .attempt = attempt_of(round),
                    .max_restarts = config_.restarts.max_restarts};
  // The lifecycle has its times from the steady clock. People read the time of day.
  const auto steady_now = std::chrono::steady_clock::now();
  const auto system_now = SystemClock::now();
  for (const EndedWorker& ended : lifecycle.ended()) {
    if (!ended.exit.failed()) continue;
    ReportedWorker worker{
        .worker = ended,
        .rank = seat.first_rank + ended.exit.local_rank,
        .when = system_now -
                std::chrono::duration_cast<SystemClock::duration>(steady_now - ended.ended),
        .error_file = files_.written_error_file(facts.attempt, ended.exit.local_rank)};
    gather_evidence(worker);
    facts.workers.push_back(std::move(worker));
  }
  // Only the root cause is quoted: reading the log files of all workers would take its time.
  if (const auto cause = root_cause(facts)) {
    ReportedWorker& worker = facts.workers[*cause];
    worker.stderr_end = files_.stderr_tail(facts.attempt, worker.worker.exit.local_rank);
    if (worker.evidence.empty()) worker.evidence = kills_.explain_child(says_killed(worker));
  }
  return facts;
}

void PostMortem::gather_evidence(ReportedWorker& worker) {
  const EndedWorker& ended = worker.worker;
  if (!worker.error_file.empty()) {
    const auto text = read_record(worker.error_file);
    worker.record = text ? parse_error_record(*text) : std::nullopt;
    worker.recorded_at = written_at(worker.error_file);
  }
  // A SIGKILL of ours to all needs no explanation. All other signals tell by their name what
  // happened.
  if (!ended.exit.ended_for.empty())
    worker.evidence = fmt::format("ddprun {}, since the worker {}",
                                  ended.exit.exit_code < 0 ? "sent it" : "ended the worker",
                                  ended.exit.ended_for);
  else if (!ended.stopped_by_us && ended.exit.exit_code == -SIGKILL)
    worker.evidence = kills_.explain(ended.exit.pid);
  if (ended.exit.dumped_core)
    worker.core_dump = find_core(ended.exit.pid, -ended.exit.exit_code,
                                 worker.when - (ended.ended - ended.started));
}

void PostMortem::file(const ReportFacts& facts, const Ending& ending, int exit_code) const {
  const auto cause = root_cause(facts);
  if (cause) {
    leave_records(facts, facts.workers[*cause]);
  } else if (!ending.succeeded && !ending.drained && !config_.error_file.empty()) {
    // No worker of this node is to blame: the launcher itself failed, or another node did.
    const ErrorRecord record{.message = ending_text(ending),
                             .unix_seconds = SystemClock::to_time_t(SystemClock::now())};
    leave_record(config_.error_file, write_error_record(record));
  }
  if (!config_.error_report.empty())
    leave_record(config_.error_report, error_report_json(facts, ending, exit_code));
}

// Writes the error file for the root cause if it wrote none itself. Writes the launcher's own error
// file, which tells of that worker.
void PostMortem::leave_records(const ReportFacts& facts, const ReportedWorker& worker) const {
  const int exit_code = worker.worker.exit.exit_code;
  const std::string path = config_.log_dir.empty()
                               ? std::string()  // a temporary folder is not kept for our own text
                               : files_.error_file(facts.attempt, worker.worker.exit.local_rank);
  // The worker's own file stays, even if it is in no form that we know.
  if (worker.error_file.empty() && !path.empty())
    leave_record(path, write_error_record(record_for(worker)));
  if (config_.error_file.empty()) return;
  const auto recorded = worker.record ? read_record(worker.error_file) : std::nullopt;
  const std::string text = recorded.value_or(write_error_record(record_for(worker)));
  leave_record(config_.error_file, with_error_code(text, exit_code));
}

}  // namespace ddprun::agent
