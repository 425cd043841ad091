// Gathers what the failure report tells: error files, the end of the root cause's stderr, the
// kernel's word on a silent kill; and leaves the records that others read (an error file for a
// worker that wrote none, the launcher's own TORCHELASTIC_ERROR_FILE, --error-report). File system
// shell; loop's thread; owned by Agent. What it finds is judged in report.h.
#pragma once

#include <string>
#include <vector>

#include "agent/config.h"
#include "agent/evidence.h"
#include "agent/report.h"
#include "agent/worker_files.h"

namespace ddprun::agent {

class Autopsy {
 public:
  // Both outlive this. Made before any worker is started: what the kernel logged before is not of
  // this job.
  Autopsy(const AgentConfig& config, const WorkerFiles& files);

  // Tells whether --error-report can be written, before any work is done. Errors name the flag.
  Result<void> check() const;

  // The facts of the round that `lifecycle` is in or was in last. Call when the workers' pipes are
  // drained.
  ReportFacts examine(const Lifecycle& lifecycle, const std::string& hostname);

  // Writes what others read of a job that ended so.
  void file(const ReportFacts& facts, const Ending& ending, int exit_code) const;

 private:
  std::string evidence_of(const WorkerExit& exit);

  const AgentConfig& config_;
  const WorkerFiles& files_;
  KernelLog kernel_log_;
  std::vector<std::string> kernel_lines_;  // since the job's start
  std::optional<std::uint64_t> oom_kills_before_;
};

}  // namespace ddprun::agent
