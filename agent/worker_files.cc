#include "agent/worker_files.h"

#include <filesystem>
#include <utility>

#include "agent/line_prefix.h"
#include "agent/stderr_tail.h"

namespace ddprun::agent {

Result<OpenedFiles> WorkerFiles::open(const WorkerStart& worker) {
  OpenedFiles opened;
  if (!logs_.enabled())
    return opened;  // --log-dir=/dev/null: no file, the streams stay on the console
  auto folder = logs_.worker_folder(worker.attempt, worker.local_rank);
  if (!folder) return folder.error();
  opened.error_file = *folder + "/error.json";
  const StreamPlan& plan = config_.streams.at(static_cast<std::size_t>(worker.local_rank));
  if (plan.redirect_stdout || plan.tee_stdout) {
    auto out =
        open_stream(*folder, "stdout.log", worker, plan.tee_stdout ? &consoles_.out : nullptr);
    if (!out) return out.error();
    opened.out = std::move(*out);
  }
  if (plan.redirect_stderr || plan.tee_stderr) {
    auto err =
        open_stream(*folder, "stderr.log", worker, plan.tee_stderr ? &consoles_.err : nullptr);
    if (!err) return err.error();
    opened.err = std::move(*err);
  }
  return opened;
}

std::string WorkerFiles::written_error_file(int attempt, int local_rank) const {
  if (!logs_.enabled()) return {};
  std::error_code absent;
  std::string path = logs_.worker_path(attempt, local_rank) + "/error.json";
  return std::filesystem::exists(path, absent) ? path : std::string();
}

std::string WorkerFiles::stderr_path(int attempt, int local_rank) const {
  const StreamPlan& plan = config_.streams.at(static_cast<std::size_t>(local_rank));
  if (!logs_.enabled() || !(plan.redirect_stderr || plan.tee_stderr)) return {};
  return logs_.worker_path(attempt, local_rank) + "/stderr.log";
}

std::vector<std::string> WorkerFiles::stderr_tail(int attempt, int local_rank) const {
  const std::string path = stderr_path(attempt, local_rank);
  return path.empty() ? std::vector<std::string>() : LogTree::tail(path, kTailLines, kTailBytes);
}

Result<FileHandle> WorkerFiles::open_stream(const std::string& folder, const std::string& name,
                                            const WorkerStart& worker, Console* tee_to) {
  auto file = LogTree::open(folder, name);
  if (!file || tee_to == nullptr) return file;
  return pipes_.open(std::move(*file),
                     expand_prefix(config_.output.prefix_template, {.role_name = config_.role,
                                                                    .local_rank = worker.local_rank,
                                                                    .rank = worker.rank,
                                                                    .hostname = hostname_,
                                                                    .restart = worker.attempt}),
                     *tee_to);
}

}  // namespace ddprun::agent
