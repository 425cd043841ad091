// What the user reads when a job failed: who failed first, how, why, and who was only stopped
// because of it; on one screen. Pure text; torchrun's words and labels where it has them, so that
// log scrapers keep working.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "agent/core/lifecycle.h"
#include "agent/report/error_record.h"

namespace ddprun::agent {

// The report never has more lines: it must stay on the screen that it is read on.
inline constexpr std::size_t kReportLines = 30;
// Of the root cause's stderr at most so many are quoted.
inline constexpr std::size_t kQuotedStderrLines = 20;
// Of a recorded Python traceback; its end is what tells.
inline constexpr std::size_t kQuotedTraceLines = 12;
// Bytes of a quoted line; the file has the whole one.
inline constexpr std::size_t kQuotedLineBytes = 300;

struct ReportedWorker {
  EndedWorker worker;
  int rank = 0;                                  // global
  std::chrono::system_clock::time_point when{};  // of its end
  std::string error_file;                        // path; empty when there is none
  std::optional<ErrorRecord> record{};           // what the worker itself wrote there
  std::optional<std::chrono::system_clock::time_point> recorded_at{};  // when it wrote it
  std::string evidence{};                 // one line on a silent end; empty without
  std::vector<std::string> stderr_end{};  // its last lines, oldest first
};

struct ReportFacts {
  std::string entry;  // script or program as the user gave it
  std::string hostname;
  std::string role = "default";
  std::string run_id{};
  int node_rank = 0;
  int attempt = 0;
  int max_restarts = 0;
  // That ended with a failure, in the order in which that was noticed.
  std::vector<ReportedWorker> workers{};
};

// The worker that the failure began with, as an index of facts.workers: the one that died first,
// or, where a worker had recorded its error clearly before that death, this one, even if it lived
// on and was stopped. Nothing when no worker of this node failed by itself.
std::optional<std::size_t> root_cause(const ReportFacts& facts);

// What is known of how a worker failed: its record, its signal, or where to read on.
std::string reason_of(const ReportedWorker& worker);

// The same for a record that others show without a report around it: never only "see elsewhere".
std::string reason_on_record(const ReportedWorker& worker);

// The report of a node whose own worker failed; ends in a newline. Empty when none did.
std::string failure_report(const ReportFacts& facts);

// One clause for an ending whose cause is not a worker of this node.
std::string ending_text(const Ending& ending);

// The same facts as JSON (--error-report; docs/torchrun.md lists the fields); also for a job that
// ended well.
std::string error_report_json(const ReportFacts& facts, const Ending& ending, int exit_code);

}  // namespace ddprun::agent
