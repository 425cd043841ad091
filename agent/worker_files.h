// Where a worker's output and error record go, opened just before it starts: files, tee pipes, or
// nothing. Joins LogTree, LogPipes and the streams the user asked for. Loop's thread; owned by
// Agent.
#pragma once

#include <string>
#include <vector>

#include "agent/config.h"
#include "agent/console.h"
#include "agent/log_pipes.h"
#include "agent/log_tree.h"

namespace ddprun::agent {

// What one worker gets. The handles are closed here after the spawn; the worker has its own copies.
struct OpenedFiles {
  FileHandle out;  // -1: inherits the console
  FileHandle err;
  std::string error_file;  // path for @record's report; empty when there are no files
};

// One start of one worker.
struct WorkerStart {
  int attempt = 0;
  int local_rank = 0;
  int rank = 0;
};

class WorkerFiles {
 public:
  struct Consoles {
    Console& out;
    Console& err;
  };

  // All but `hostname` outlive this.
  WorkerFiles(const AgentConfig& config, const LogTree& logs, LogPipes& pipes, Consoles consoles,
              std::string hostname)
      : config_(config),
        logs_(logs),
        pipes_(pipes),
        consoles_(consoles),
        hostname_(std::move(hostname)) {}

  // Opens everything for one worker. Errors name the file.
  Result<OpenedFiles> open(const WorkerStart& worker);
  // The path of the error record that a worker of this attempt wrote; empty when it wrote none.
  std::string written_error_file(int attempt, int local_rank) const;
  // The file that has the worker's stderr; empty when it has none.
  std::string stderr_path(int attempt, int local_rank) const;
  // The last kTailLines lines of the worker's stderr, for the failure report; valid UTF-8. None
  // where it was inherited: a terminal's text cannot be read back. Call after LogPipes::drain().
  std::vector<std::string> stderr_tail(int attempt, int local_rank) const;

 private:
  Result<FileHandle> open_stream(const std::string& folder, const std::string& name,
                                 const WorkerStart& worker, Console* tee_to);

  const AgentConfig& config_;
  const LogTree& logs_;
  LogPipes& pipes_;
  Consoles consoles_;
  std::string hostname_;
};

}  // namespace ddprun::agent
