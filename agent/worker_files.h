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

class WorkerFiles {
 public:
  struct Consoles {
    Console& out;
    Console& err;
  };

  // All outlive this.
  WorkerFiles(const AgentConfig& config, const LogTree& logs, LogPipes& pipes, Consoles consoles)
      : config_(config), logs_(logs), pipes_(pipes), consoles_(consoles) {}

  // Opens everything for `local_rank` in this attempt. Errors name the file.
  Result<OpenedFiles> open(int attempt, int local_rank);
  // The path of the error record that a worker of this attempt wrote; empty when it wrote none.
  std::string written_error_file(int attempt, int local_rank) const;

 private:
  Result<FileHandle> open_stream(const std::string& folder, const std::string& name, int local_rank,
                                 Console* tee_to);

  const AgentConfig& config_;
  const LogTree& logs_;
  LogPipes& pipes_;
  Consoles consoles_;
};

}  // namespace ddprun::agent
