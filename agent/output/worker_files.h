// Where a worker's output and error record go, opened just before it starts: files, pipes to the
// console, or nothing. Joins LogTree, LogPipes and the streams the user asked for. Loop's thread;
// owned by Agent.
#pragma once

#include <array>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "agent/core/config.h"
#include "agent/output/console.h"
#include "agent/output/log_pipes.h"
#include "agent/output/log_tree.h"
#include "agent/output/passthrough_sink.h"
#include "agent/output/tee_sink.h"

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

// A stream of a worker goes
//   redirected                to its file
//   tee'd                     to its file, and through us to the console
//   neither, shown            to the console: inherited, but stderr passes through us where it is
//                             no terminal (a program may ask), so that the failure report can quote
//                             it; stdout then too where both are one file (2>&1), in one pipe
//   neither, or tee'd, hidden to its file: kept from the console it must not be lost
// and with --log-dir=/dev/null to the console, or, hidden, nowhere.
class WorkerFiles {
 public:
  // All but `hostname` outlive this.
  WorkerFiles(const AgentConfig& config, const LogTree& logs, LogPipes& pipes, Consoles& consoles,
              std::string hostname)
      : config_(config),
        logs_(logs),
        pipes_(pipes),
        consoles_(consoles),
        hostname_(std::move(hostname)) {}

  // Opens everything for one worker. All pipes of an earlier attempt must have been drained. Errors
  // name the file.
  Result<OpenedFiles> open(const WorkerStart& worker);
  // Where a worker of this attempt writes its error record; empty when there are no files.
  std::string error_file(int attempt, int local_rank) const;
  // The same when it wrote one; else empty.
  std::string written_error_file(int attempt, int local_rank) const;
  // The file that has the worker's stderr; empty when it has none.
  std::string stderr_path(int attempt, int local_rank) const;
  // The last kTailLines lines of the worker's stderr, for the failure report; valid UTF-8. None
  // where it was inherited, and of earlier attempts only what files have. Call after
  // LogPipes::drain().
  std::vector<std::string> stderr_tail(int attempt, int local_rank) const;

 private:
  enum class Kind { kOut, kErr };
  enum class Route { kInherit, kThrough, kFile, kTee, kNowhere };

  Result<void> begin_attempt(int attempt);
  Result<void> make_tee_console(Kind kind, int attempt);
  Route route(Kind kind, int local_rank) const;
  bool are_one_pipe(int local_rank) const;
  Result<FileHandle> open_stream(Kind kind, const WorkerStart& worker);
  Result<FileHandle> open_tee(Kind kind, const WorkerStart& worker);
  Result<FileHandle> open_through(const WorkerStart& worker);
  static const char* file_name(Kind kind);

  const AgentConfig& config_;
  const LogTree& logs_;
  LogPipes& pipes_;
  Consoles& consoles_;
  std::string hostname_;
  // Of the current attempt:
  int attempt_ = -1;
  std::array<std::unique_ptr<TeeConsole>, 2> tee_consoles_;  // by Kind
  std::map<int, std::shared_ptr<StderrTail>> tails_;         // by local rank; shared with its sink
};

}  // namespace ddprun::agent
