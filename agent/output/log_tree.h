// The folders and files of a job's logs, as torchrun lays them out
// (torch/distributed/elastic/multiprocessing/api.py 2.11):
//   <root>/<run id>_<8 random>/attempt_<restart>/<local rank>/{stdout.log,stderr.log,error.json}
//   <root>/<run id>_<8 random>/attempt_<restart>/filtered_{stdout,stderr}.log
// root is --log-dir, with a link `latest` to the folder of the job that began last, or a temporary
// folder, which is removed again at the end unless it holds something worth keeping. File system
// shell; loop's thread; owned by Agent.
#pragma once

#include <string>
#include <vector>

#include "proto/file_handle.h"
#include "proto/result.h"

namespace ddprun::agent {

class LogTree {
 public:
  // No files at all.
  LogTree() = default;

  // Makes the job's folder. `log_dir` empty: under $TMPDIR or /tmp; "/dev/null": no files at all.
  // Errors name the folder. A file or folder of the user's named `latest` is left alone.
  static Result<LogTree> make(const std::string& log_dir, const std::string& run_id);

  LogTree(LogTree&&) = default;
  LogTree& operator=(LogTree&&) = default;
  LogTree(const LogTree&) = delete;
  LogTree& operator=(const LogTree&) = delete;
  ~LogTree() = default;

  bool enabled() const { return !job_folder_.empty(); }
  // The job's folder; empty when there are no files.
  const std::string& job_folder() const { return job_folder_; }
  // The root that is removed at the end; empty when the user named one.
  const std::string& temporary_root() const { return temporary_root_; }

  // Where the files of an attempt, or of one worker in it, are; whether they exist or not. Empty
  // when there are no files.
  std::string attempt_path(int attempt) const;
  std::string worker_path(int attempt, int local_rank) const;
  // Make attempt_path() and worker_path().
  Result<std::string> attempt_folder(int attempt) const;
  Result<std::string> worker_folder(int attempt, int local_rank) const;
  // Opens `<folder>/<name>` for appending, made if needed.
  static Result<FileHandle> open(const std::string& folder, const std::string& name);
  // The last `lines` lines of a file within its last `max_bytes` bytes, as last_lines() gives them;
  // none when it cannot be read.
  static std::vector<std::string> tail(const std::string& path, std::size_t lines,
                                       std::size_t max_bytes);

  // Removes a temporary tree; with `keep_files` only if no file is in it. A --log-dir is never
  // touched.
  void clean_up(bool keep_files) const;

 private:
  std::string temporary_root_;  // empty when the user named the root
  std::string job_folder_;
};

// Removes a temporary root; with `keep_files` only if no file is in it. Also for who did not make
// it.
void remove_temporary_logs(const std::string& root, bool keep_files);

}  // namespace ddprun::agent
