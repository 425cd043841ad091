// Gathers what the failure report tells: error files, the end of the root cause's stderr, the
// kernel's word on a silent kill; and leaves the records that others read (an error file for a
// worker that wrote none, the launcher's own TORCHELASTIC_ERROR_FILE, --error-report). File system
// shell; loop's thread; owned by Agent. What it finds is judged in report.h.
#pragma once

#include <string>
#include <vector>

#include "agent/core/config.h"
#include "agent/output/worker_files.h"
#include "agent/report/out_of_memory.h"
#include "agent/report/report.h"

namespace ddprun::agent {

class Autopsy {
 public:
  // Both outlive this. Made before any worker is started: what the kernel logged before is not of
  // this job.
  Autopsy(const AgentConfig& config, const WorkerFiles& files);

  // Tells whether --error-report can be written, before any work is done. Errors name the flag.
  Result<void> check() const;

  // Call before an attempt's workers are started: an earlier one's out-of-memory kills are not
  // theirs.
  void attempt_started() { kills_.attempt_started(); }

  // The facts of the round that `lifecycle` is in or was in last. Call when the workers' pipes are
  // drained.
  ReportFacts examine(const Lifecycle& lifecycle, const std::string& hostname);

  // Writes what others read of a job that ended so.
  void file(const ReportFacts& facts, const Ending& ending, int exit_code) const;

 private:
  void leave_records(const ReportFacts& facts, const ReportedWorker& worker) const;

  const AgentConfig& config_;
  const WorkerFiles& files_;
  KillExplainer kills_;
};

}  // namespace ddprun::agent
