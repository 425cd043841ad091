// The folders and files of a job's logs, as torchrun lays them out
// (torch/distributed/elastic/multiprocessing/api.py 2.11):
//   <root>/<run id>_<8 random>/attempt_<restart>/<local rank>/{stdout.log,stderr.log,error.json}
// root is --log-dir or a temporary folder, which is removed again at the end unless it holds
// something worth keeping. File system shell; loop's thread; owned by Agent.
#pragma once

#include <string>

#include "agent/file_handle.h"
#include "proto/result.h"

namespace ddprun::agent {

class LogTree {
 public:
  // No files at all.
  LogTree() = default;

  // Makes the job's folder. `log_dir` empty: under $TMPDIR or /tmp; "/dev/null": no files at all.
  // Errors name the folder.
  static Result<LogTree> make(const std::string& log_dir, const std::string& run_id);

  LogTree(LogTree&&) = default;
  LogTree& operator=(LogTree&&) = default;
  LogTree(const LogTree&) = delete;
  LogTree& operator=(const LogTree&) = delete;
  ~LogTree() = default;

  bool enabled() const { return !job_folder_.empty(); }

  // The worker's folder of this attempt, made if needed. Empty when there are no files.
  Result<std::string> worker_folder(int attempt, int local_rank) const;
  // Opens `<worker folder>/<name>` for appending, made if needed.
  static Result<FileHandle> open(const std::string& folder, const std::string& name);

  // Removes a temporary tree; with `keep_files` only if no file is in it. A --log-dir is never
  // touched.
  void clean_up(bool keep_files) const;

 private:
  std::string temporary_root_;  // empty when the user named the root
  std::string job_folder_;
};

}  // namespace ddprun::agent
