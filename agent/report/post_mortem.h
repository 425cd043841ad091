// Gathers the facts for the failure report. They are the workers' error files and the last lines of
// the root cause's stderr. For a worker that was killed without a word they are the kernel's words.
// It also leaves records for others to read. They are an error file for a worker that wrote none,
// the launcher's own TORCHELASTIC_ERROR_FILE, and --error-report. It does not decide who is to
// blame and makes no text for the user: report.h does. File system shell. Runs on the loop's
// thread. Owned by Reporter.
#pragma once

#include <string>
#include <vector>

#include "agent/core/config.h"
#include "agent/output/worker_files.h"
#include "agent/report/out_of_memory.h"
#include "agent/report/report.h"

namespace ddprun::agent {

class PostMortem {
 public:
  // Both must outlive this object.
  PostMortem(const AgentConfig& config, const WorkerFiles& files);

  // Tells whether --error-report can be written. Call it before any work is done: else the user
  // would learn it only when the job is over. Errors (kInvalidArgument) name flag and path.
  Result<void> check() const;

  // Call before the workers of an attempt are started: out-of-memory kills of an earlier attempt
  // say nothing about them.
  void attempt_started() { kills_.attempt_started(); }
  // Call once they run: what the kernel logs from then on is read.
  void workers_started() { kills_.workers_started(); }

  // Returns the facts about the round that `lifecycle` is in, or was in last. Call it when the
  // workers' pipes are drained (WorkerGroup::end_attempt): else the end of their stderr is missing.
  ReportFacts examine(const Lifecycle& lifecycle, const std::string& hostname);

  // Writes the records for a job that ended so. `facts` come from examine(); `exit_code` is that of
  // ddprun. A record that cannot be written is logged as an error; the exit code stays.
  void file(const ReportFacts& facts, const Ending& ending, int exit_code) const;

  // As KillExplainer::has_killed_here().
  bool was_short_of_memory() const { return kills_.has_killed_here(); }

 private:
  // Reads what a failed worker wrote and what the kernel says of its end.
  void gather_evidence(ReportedWorker& worker);
  void leave_records(const ReportFacts& facts, const ReportedWorker& worker) const;

  const AgentConfig& config_;
  const WorkerFiles& files_;
  KillExplainer kills_;
};

}  // namespace ddprun::agent
