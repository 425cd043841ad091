// The folders and files of a job's logs, laid out as torchrun does it
// (torch/distributed/elastic/multiprocessing/api.py 2.11):
//   <root>/<run id>_<6 random>/attempt_<restart>/<local rank>/{stdout.log,stderr.log,error.json}
//   <root>/<run id>_<6 random>/attempt_<restart>/filtered_{stdout,stderr}.log
// The root is --log-dir; there a link `latest` points to the folder of the job that began last. Or
// it is a temporary folder, which clean_up() removes. This makes, opens and removes files; it
// writes no output into them. Loop's thread; owned by WorkerGroup.
#pragma once

#include <string>
#include <vector>

#include "base/file_handle.h"
#include "base/result.h"

namespace ddprun::agent {

class LogTree {
 public:
  // A tree without any files.
  LogTree() = default;

  // Makes the job's folder in `log_dir`. Empty: in a temporary root under $TMPDIR, /tmp or the
  // first place after them that can be written. "/dev/null": there are no files at all. A file or
  // folder named `latest` that the user made stays. Errors name the folder: kSystem.
  // kInvalidArgument: `run_id` has a slash.
  static Result<LogTree> make(const std::string& log_dir, const std::string& run_id);

  LogTree(LogTree&&) = default;
  LogTree& operator=(LogTree&&) = default;
  LogTree(const LogTree&) = delete;
  LogTree& operator=(const LogTree&) = delete;
  ~LogTree() = default;

  bool enabled() const { return !job_folder_.empty(); }
  // The job's folder; empty when there are no files.
  const std::string& job_folder() const { return job_folder_; }
  // The root that clean_up() removes; empty when the user named one.
  const std::string& temporary_root() const { return temporary_root_; }

  // Says why the temporary root is not in the first place for it. Empty if it is there.
  const std::string& notice() const { return notice_; }

  // The folder of an attempt, and the folder of one worker in it. They need not exist. Empty when
  // there are no files.
  std::string attempt_path(int attempt) const;
  std::string worker_path(int attempt, int local_rank) const;
  // Make the folder and return its path. It may exist already.
  Result<std::string> attempt_folder(int attempt) const;
  Result<std::string> worker_folder(int attempt, int local_rank) const;
  // Opens `<folder>/<name>` for appending and makes it if needed. `folder` must exist. The error
  // names the file.
  static Result<FileHandle> open(const std::string& folder, const std::string& name);
  // Looks at the last `max_bytes` bytes of a file and returns their last `lines` lines, as
  // last_lines() shows them. Returns none when the file cannot be read.
  static std::vector<std::string> tail(const std::string& path, std::size_t lines,
                                       std::size_t max_bytes);

  // Removes the temporary root; with `keep_files` only if there is no file in it. It never touches
  // a --log-dir. Call it once, at the end of the job.
  void clean_up(bool keep_files) const;

 private:
  std::string temporary_root_;  // empty when the user named the root
  std::string job_folder_;
  std::string notice_;
};

// Removes the temporary root `root`; with `keep_files` only if there is no file in it. The guardian
// calls it when the agent was killed: it has the path, but no LogTree. Errors are ignored.
void remove_temporary_logs(const std::string& root, bool keep_files);

}  // namespace ddprun::agent
