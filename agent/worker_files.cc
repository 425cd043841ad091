#include "agent/worker_files.h"

#include <fmt/format.h>

#include <filesystem>
#include <utility>

namespace ddprun::agent {

Result<OpenedFiles> WorkerFiles::open(int attempt, int local_rank) {
  OpenedFiles opened;
  if (!logs_.enabled())
    return opened;  // --log-dir=/dev/null: no file, the streams stay on the console
  auto folder = logs_.worker_folder(attempt, local_rank);
  if (!folder) return folder.error();
  opened.error_file = *folder + "/error.json";
  const StreamPlan& plan = config_.streams.at(static_cast<std::size_t>(local_rank));
  if (plan.redirect_stdout || plan.tee_stdout) {
    auto out =
        open_stream(*folder, "stdout.log", local_rank, plan.tee_stdout ? &consoles_.out : nullptr);
    if (!out) return out.error();
    opened.out = std::move(*out);
  }
  if (plan.redirect_stderr || plan.tee_stderr) {
    auto err =
        open_stream(*folder, "stderr.log", local_rank, plan.tee_stderr ? &consoles_.err : nullptr);
    if (!err) return err.error();
    opened.err = std::move(*err);
  }
  return opened;
}

std::string WorkerFiles::written_error_file(int attempt, int local_rank) const {
  const auto folder = logs_.worker_folder(attempt, local_rank);
  if (!folder || folder->empty()) return {};
  std::error_code absent;
  const std::string path = *folder + "/error.json";
  return std::filesystem::exists(path, absent) ? path : std::string();
}

Result<FileHandle> WorkerFiles::open_stream(const std::string& folder, const std::string& name,
                                            int local_rank, Console* tee_to) {
  auto file = LogTree::open(folder, name);
  if (!file || tee_to == nullptr) return file;
  return pipes_.open(std::move(*file), fmt::format("[{}{}]:", config_.role, local_rank), *tee_to);
}

}  // namespace ddprun::agent
