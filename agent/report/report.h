// The report that the user reads when a job has failed. It says which worker failed first, how and
// why, and which workers were only stopped because of that. It fits on one screen. Words and labels
// are those of torchrun if torchrun has them, so that programs which search logs keep working. This
// file decides who is to blame (root_cause); it gathers no facts and writes no file: post_mortem.h
// does. Pure text; any thread.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "agent/core/incident.h"
#include "agent/core/lifecycle.h"
#include "agent/report/error_record.h"

namespace ddprun::agent {

// The most lines of the report: all of it must be seen on one screen.
inline constexpr std::size_t kReportLines = 30;
// The most lines that are quoted from the end of the root cause's stderr.
inline constexpr std::size_t kQuotedStderrLines = 20;
// The most lines that are quoted of a recorded Python traceback: its first and its last ones. The
// last ones name the exception.
inline constexpr std::size_t kQuotedTraceLines = 12;
// The most bytes that are quoted of one line. The worker's log file has all of it.
inline constexpr std::size_t kQuotedLineBytes = 300;

// The facts of one worker that ended with a failure.
struct ReportedWorker {
  EndedWorker worker;
  int rank = 0;                                  // global
  std::chrono::system_clock::time_point when{};  // when it ended
  std::string error_file;                        // path; empty: it wrote none
  std::optional<ErrorRecord> record{};           // what it wrote there; nothing: no known form
  std::optional<std::chrono::system_clock::time_point> recorded_at{};  // when it wrote that
  // One line about who sent its signal and why, or about a SIGKILL of a process beside it; else
  // empty.
  std::string evidence{};
  std::string core_dump{};                // where it is; empty: there is none
  std::vector<std::string> stderr_end{};  // of the root cause only: the last lines, oldest first
};

// All that the report tells.
struct ReportFacts {
  std::string entry;  // script or program, as the user gave it
  std::string hostname;
  std::string role = "default";
  std::string run_id{};
  int node_rank = 0;
  int restarts = 0;  // spent so far
  int attempt = 0;   // attempt_of() the round: the N of the folder attempt_N
  int max_restarts = 0;
  // Workers of this node that ended with a failure, in the order in which their ends were noticed.
  std::vector<ReportedWorker> workers{};
  std::vector<Incident> incidents{};  // that are over, in order
};

// Returns the worker with which the failure began, as an index into facts.workers. Mostly it is the
// one that died first. But a worker may have recorded an error clearly before that death. Then it
// is that worker, even if it lived on and we stopped it. Nothing if no worker of this node failed
// by itself.
std::optional<std::size_t> root_cause(const ReportFacts& facts);

// Says why a worker failed. It is the traceback or message that it recorded, else why it could not
// be started, else its signal. If nothing of this is known, it says where to read how to record
// errors.
std::string reason_of(const ReportedWorker& worker);

// The same for a record that others show alone, without our report around it. If nothing is known,
// it names the worker and its exit code instead of a page to read.
std::string reason_on_record(const ReportedWorker& worker);

// The report of a node; ends in a newline. Empty if no worker of this node failed by itself.
std::string failure_report(const ReportFacts& facts);

// A line from others as valid UTF-8, without control characters, cut to kQuotedLineBytes.
std::string shown_on_console(const std::string& line);

// One clause, without newline, about an ending whose cause is no worker of this node.
std::string ending_text(const Ending& ending);

// The same facts as JSON, for --error-report; docs/torchrun.md lists the fields. Also for a job
// that ended well. `exit_code` is that of ddprun. Ends in a newline.
std::string error_report_json(const ReportFacts& facts, const Ending& ending, int exit_code);

}  // namespace ddprun::agent
