#include "agent/output/worker_files.h"

#include <fcntl.h>
#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

#include "agent/output/line_prefix.h"
#include "agent/output/passthrough_sink.h"
#include "base/limit_hint.h"
#include "base/log.h"

namespace ddprun::agent {
namespace {

// /dev/null and not a closed descriptor. Else the worker's next open(2) would get number 1 or 2,
// and output would go into that file.
Result<FileHandle> open_nowhere() {
  FileHandle nowhere(::open("/dev/null", O_WRONLY | O_CLOEXEC));
  if (nowhere.get() < 0)
    return Error(ErrorCode::kSystem, fmt::format("open /dev/null: {}", describe_errno(errno)));
  return nowhere;
}

}  // namespace

Result<OpenedFiles> WorkerFiles::open(const WorkerStart& worker) {
  auto opened = try_open(worker);
  has_opened_ = has_opened_ || opened.has_value();
  const bool may_go_on = has_opened_ || config_.log_dir.empty();
  if (opened || !enabled() || !may_go_on || opened.error().code() != ErrorCode::kSystem)
    return opened;
  is_lost_ = true;
  log::warning(fmt::format("{}; workers get no log files from now on, and the job goes on",
                           opened.error().message()));
  return try_open(worker);
}

Result<OpenedFiles> WorkerFiles::try_open(const WorkerStart& worker) {
  if (const auto begun = begin_attempt(worker.attempt); !begun) return begun.error();
  OpenedFiles opened;
  if (enabled()) {
    const auto folder = logs_.worker_folder(worker.attempt, worker.local_rank);
    if (!folder) return folder.error();
    opened.error_file = *folder + "/error.json";
  }
  auto out = open_stream(Kind::kOut, worker);
  if (!out) return out.error();
  opened.out = std::move(*out);
  auto err = open_stream(Kind::kErr, worker);
  if (!err) return err.error();
  opened.err = std::move(*err);
  if (are_one_pipe(worker.local_rank)) {
    opened.out = FileHandle(::fcntl(opened.err.get(), F_DUPFD_CLOEXEC, 0));
    if (opened.out.get() < 0)
      return Error(ErrorCode::kSystem, fmt::format("share a log pipe: {}", describe_errno(errno)));
  }
  return opened;
}

// Does its work for the first worker of an attempt only. If it fails, `attempt_` keeps its value,
// so the next worker tries again.
Result<void> WorkerFiles::begin_attempt(int attempt) {
  if (attempt == attempt_) return {};
  tails_.clear();
  for (const Kind kind : {Kind::kOut, Kind::kErr}) {
    if (const auto made = make_tee_console(kind, attempt); !made) return made.error();
  }
  attempt_ = attempt;
  return {};
}

// The filtered file is made whenever there are filters, even if no line will match.
Result<void> WorkerFiles::make_tee_console(Kind kind, int attempt) {
  const OutputPlan& output = config_.output;
  // Folding counts only the ranks whose lines come to the console. With others in the count, each
  // line would wait for the whole kFoldWindow.
  LineFormat plan{.filters = kind == Kind::kOut ? output.stdout_filters : output.stderr_filters,
                  .fold = output.fold,
                  .streams = static_cast<std::size_t>(std::count_if(
                      config_.streams.begin(), config_.streams.end(), [&](const StreamPlan& one) {
                        return one.shown && (kind == Kind::kOut ? one.tee_stdout : one.tee_stderr);
                      }))};
  FileHandle filtered;
  if (plan.filters && enabled()) {
    const auto folder = logs_.attempt_folder(attempt);
    if (!folder) return folder.error();
    auto file = LogTree::open(*folder, fmt::format("filtered_{}", file_name(kind)));
    if (!file) return file.error();
    filtered = std::move(*file);
  }
  tee_consoles_.at(static_cast<std::size_t>(kind)) = std::make_unique<TeeConsole>(
      kind == Kind::kOut ? consoles_.out() : consoles_.err(), std::move(plan), std::move(filtered));
  return {};
}

// The table in the header. `shown` comes first, because a hidden stream goes to its file even if it
// is tee'd.
WorkerFiles::Route WorkerFiles::route(Kind kind, int local_rank) const {
  const StreamPlan& plan = config_.streams.at(static_cast<std::size_t>(local_rank));
  const bool tee = kind == Kind::kOut ? plan.tee_stdout : plan.tee_stderr;
  const bool redirect = kind == Kind::kOut ? plan.redirect_stdout : plan.redirect_stderr;
  if (!plan.shown) return enabled() ? Route::kFile : Route::kNowhere;
  if (enabled() && tee) return Route::kTee;
  if (enabled() && redirect) return Route::kFile;
  const bool through = kind == Kind::kErr && !consoles_.err().is_terminal();
  return through ? Route::kThrough : Route::kInherit;
}

// With `> job.log 2>&1` the lines of stdout and stderr are in the order in which the worker wrote
// them. If only stderr passed through us, it would come late and the order would be lost.
bool WorkerFiles::are_one_pipe(int local_rank) const {
  return consoles_.share_an_order() && route(Kind::kOut, local_rank) == Route::kInherit &&
         route(Kind::kErr, local_rank) == Route::kThrough;
}

Result<FileHandle> WorkerFiles::open_stream(Kind kind, const WorkerStart& worker) {
  switch (route(kind, worker.local_rank)) {
    case Route::kTee:
      return open_tee(kind, worker);
    case Route::kFile:
      return LogTree::open(logs_.worker_path(worker.attempt, worker.local_rank), file_name(kind));
    case Route::kNowhere:
      return open_nowhere();
    case Route::kThrough:
      return open_through(worker);
    case Route::kInherit:
      break;
  }
  return FileHandle();
}

Result<FileHandle> WorkerFiles::open_tee(Kind kind, const WorkerStart& worker) {
  auto file = LogTree::open(logs_.worker_path(worker.attempt, worker.local_rank), file_name(kind));
  if (!file) return file;
  LineSource source{
      .rank = worker.rank,
      .prefix = expand_prefix(config_.output.prefix_template, {.role_name = config_.role,
                                                               .local_rank = worker.local_rank,
                                                               .rank = worker.rank,
                                                               .hostname = hostname_,
                                                               .restart = worker.restart_count})};
  return pipes_.open(std::make_unique<TeeSink>(std::move(*file), std::move(source),
                                               *tee_consoles_.at(static_cast<std::size_t>(kind))));
}

Result<FileHandle> WorkerFiles::open_through(const WorkerStart& worker) {
  auto tail = std::make_shared<StderrTail>();
  tails_[worker.local_rank] = tail;
  return pipes_.open(std::make_unique<PassthroughSink>(consoles_.err(), std::move(tail)));
}

const char* WorkerFiles::file_name(Kind kind) {
  return kind == Kind::kOut ? "stdout.log" : "stderr.log";
}

std::string WorkerFiles::error_file(int attempt, int local_rank) const {
  return enabled() ? logs_.worker_path(attempt, local_rank) + "/error.json" : std::string();
}

std::string WorkerFiles::written_error_file(int attempt, int local_rank) const {
  std::error_code absent;
  std::string path = error_file(attempt, local_rank);
  return std::filesystem::exists(path, absent) ? path : std::string();
}

std::string WorkerFiles::stderr_path(int attempt, int local_rank) const {
  const Route taken = route(Kind::kErr, local_rank);
  if (taken != Route::kTee && taken != Route::kFile) return {};
  return logs_.worker_path(attempt, local_rank) + "/" + file_name(Kind::kErr);
}

std::vector<std::string> WorkerFiles::stderr_tail(int attempt, int local_rank) const {
  const std::string path = stderr_path(attempt, local_rank);
  if (!path.empty()) return LogTree::tail(path, kTailLines, kTailBytes);
  const auto tail = tails_.find(local_rank);
  const bool known = attempt == attempt_ && tail != tails_.end();
  return known ? tail->second->lines() : std::vector<std::string>();
}

}  // namespace ddprun::agent
