// Decides where a worker's output and error record go, and opens it just before the worker starts.
// It is a file, a pipe to the console, or /dev/null. It joins LogTree, LogPipes and the user's
// flags. It does not start the worker and does not read its output. Loop's thread; owned by
// WorkerGroup.
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

// The files of one worker. The caller must close the handles after the spawn: the worker has
// copies. As long as a write end of a pipe is open here, the stream does not end.
struct OpenedFiles {
  FileHandle out;          // -1: the worker inherits our stdout
  FileHandle err;          // -1: the worker inherits our stderr
  std::string error_file;  // path of the worker's error record (@record); empty: no files
};

// One start of one worker.
struct WorkerStart {
  int attempt = 0;        // counts rounds: the number of its folder
  int restart_count = 0;  // torchrun's; a resize does not raise it
  int local_rank = 0;
  int rank = 0;
};

// A stream of a worker goes
//   redirected      to its file
//   tee'd           to its file, and through us to the console
//   neither         to the console. The worker inherits it, with these exceptions:
//                   - stderr passes through us, so that the failure report can quote it. But a
//                     terminal is always inherited: the program may ask whether it has one.
//                   - If stdout and stderr are one file (2>&1), stdout passes through us too, in
//                     the same pipe, so that the order of the two is kept.
//   hidden          to its file: it is not shown (--local-ranks-filter), but must not be lost
// With --log-dir=/dev/null there are no files. A hidden stream goes nowhere then; any other is
// handled as "neither". So it is when a later attempt finds the disk full or gone. One warning says
// it, and the job goes on.
class WorkerFiles {
 public:
  // All that is passed by reference must outlive this. `hostname` is for the prefix of the lines.
  WorkerFiles(const AgentConfig& config, const LogTree& logs, LogPipes& pipes, Consoles& consoles,
              std::string hostname)
      : config_(config),
        logs_(logs),
        pipes_(pipes),
        consoles_(consoles),
        hostname_(std::move(hostname)) {}

  // Opens everything for one worker. Before the first worker of an attempt, call LogPipes::drain().
  // The sinks of the attempt before use objects that this call replaces. Errors name the file.
  Result<OpenedFiles> open(const WorkerStart& worker);
  // The path at which a worker of this attempt writes its error record; empty when there are no
  // files.
  std::string error_file(int attempt, int local_rank) const;
  // As error_file(), but empty if the worker wrote no record.
  std::string written_error_file(int attempt, int local_rank) const;
  // The path of the file with the worker's stderr; empty if no file gets it.
  std::string stderr_path(int attempt, int local_rank) const;
  // The last kTailLines lines of the worker's stderr, for the failure report; valid UTF-8. None if
  // the worker inherited its stderr. An earlier attempt has left only files. Call after
  // LogPipes::drain(), or the last lines may be missing.
  std::vector<std::string> stderr_tail(int attempt, int local_rank) const;

 private:
  enum class Kind { kOut, kErr };
  enum class Route { kInherit, kThrough, kFile, kTee, kNowhere };

  bool enabled() const { return logs_.enabled() && !is_lost_; }
  Result<OpenedFiles> try_open(const WorkerStart& worker);
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
  bool has_opened_ = false;  // the files of a worker
  bool is_lost_ = false;     // the disk takes no files any more
  // The state of the current attempt:
  int attempt_ = -1;
  std::array<std::unique_ptr<TeeConsole>, 2> tee_consoles_;  // by Kind
  std::map<int, std::shared_ptr<StderrTail>> tails_;         // by local rank; shared with its sink
};

}  // namespace ddprun::agent
