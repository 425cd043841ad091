#include "agent/output/log_tree.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <utility>

#include "agent/output/console_text.h"
#include "base/limit_hint.h"

namespace ddprun::agent {
namespace {

namespace fs = std::filesystem;

// kLimit: no descriptor is left, which is no fault of the disk.
Error failed(const std::string& what, const std::string& path, int why) {
  const bool no_descriptor = why == EMFILE || why == ENFILE;
  return {no_descriptor ? ErrorCode::kLimit : ErrorCode::kSystem,
          fmt::format("{} {}: {}", what, path, describe_errno(why))};
}

// Makes a folder with a name that no other job has. It is `prefix` and six characters that
// mkdtemp(3) puts in place of the X's. Only this user may enter it.
Result<std::string> make_unique_folder(const std::string& prefix) {
  std::string path = prefix + "XXXXXX";
  if (::mkdtemp(path.data()) == nullptr) return failed("make the log folder", path, errno);
  return path;
}

// Makes `path` with its parents; it may exist already. An empty path means that there are no files:
// nothing is made.
Result<std::string> make_folder(std::string path) {
  if (path.empty()) return path;
  std::error_code why;
  fs::create_directories(path, why);
  if (why) return failed("make the log folder", path, why.value());
  return path;
}

// Points `<root>/latest` to the job's folder. The link is relative, so that it is still right when
// the root is moved. It is made under a name of its own and then renamed. rename(2) replaces the
// old link in one step. So jobs that begin at the same time do not disturb each other. If the user
// has a file or folder of this name, it stays. Errors are ignored: some file systems have no links.
void point_latest_at(const fs::path& job) {
  const fs::path latest = job.parent_path() / "latest";
  const fs::path fresh = job.parent_path() / (".latest_" + job.filename().string());
  std::error_code why;
  const fs::file_type there = fs::symlink_status(latest, why).type();
  if (there != fs::file_type::not_found && there != fs::file_type::symlink) return;
  fs::create_directory_symlink(job.filename(), fresh, why);
  if (why) return;
  fs::rename(fresh, latest, why);
  if (why) fs::remove(fresh, why);
}

// True if there is a regular file below `root`, or if that is not certain: then nothing may be
// removed.
bool holds_a_file(const fs::path& root) {
  constexpr auto kSkip = fs::directory_options::skip_permission_denied;
  // Error codes throw nothing. A job that ended well must not fail here.
  std::error_code why;
  for (fs::recursive_directory_iterator at(root, kSkip, why), end; at != end; at.increment(why)) {
    std::error_code gone;
    if (at->is_regular_file(gone)) return true;
  }
  // An error ends the walk early, such as a folder that vanished. The rest may hold files.
  return static_cast<bool>(why);
}

// A place for temporary folders.
struct TemporaryBase {
  std::string path;
  std::string named;  // for people
};

// In the order of Python's tempfile, which torchrun asks.
std::vector<TemporaryBase> temporary_bases() {
  std::vector<TemporaryBase> bases;
  for (const char* name : {"TMPDIR", "TEMP", "TMP"}) {
    const char* path = std::getenv(name);  // NOLINT(concurrency-mt-unsafe): before any other thread
    if (path != nullptr && *path != '\0') bases.push_back({path, fmt::format("{}={}", name, path)});
  }
  for (const char* path : {"/tmp", "/var/tmp", "/usr/tmp"}) bases.push_back({path, path});
  std::error_code gone;
  const fs::path here = fs::current_path(gone);
  if (!gone) bases.push_back({here, "the working directory"});
  return bases;
}

// The first that can be made. `notice` becomes what is wrong with those before.
Result<std::string> make_temporary_root(std::string& notice) {
  std::string wrong;
  for (const TemporaryBase& base : temporary_bases()) {
    auto made = make_unique_folder(base.path + "/torchelastic_");
    if (made && !wrong.empty())
      notice = fmt::format("{}; the job's log folder is {}", wrong, *made);
    if (made) return made;
    if (wrong.empty()) wrong = fmt::format("{}: {}", base.named, made.error().message());
  }
  return Error(ErrorCode::kSystem, wrong + ", nor in the other places for temporary files");
}

// The folder for the jobs' folders, which the user named.
Result<std::string> make_root(const std::string& log_dir) {
  std::error_code why;
  fs::create_directories(log_dir, why);
  if (why || !fs::is_directory(log_dir, why))
    return Error(ErrorCode::kSystem,
                 fmt::format("--log-dir={}: expected a folder that can be made and written: {}",
                             log_dir, why ? why.message() : "it is a file"));
  return log_dir;
}

}  // namespace

Result<LogTree> LogTree::make(const std::string& log_dir, const std::string& run_id) {
  LogTree tree;
  if (log_dir == "/dev/null") return tree;
  if (run_id.find('/') != std::string::npos)
    return Error(ErrorCode::kInvalidArgument,
                 fmt::format("--rdzv-id={}: a slash cannot be in it, since it names the log folder",
                             run_id));
  const auto root = log_dir.empty() ? make_temporary_root(tree.notice_) : make_root(log_dir);
  if (!root) return root.error();
  if (log_dir.empty()) tree.temporary_root_ = *root;
  auto job = make_unique_folder(fs::path(*root) / (run_id + "_"));
  if (!job) {
    if (log_dir.empty()) return job.error();
    return Error(ErrorCode::kSystem,
                 fmt::format("--log-dir={}: expected a folder that can be written: {}", log_dir,
                             job.error().message()));
  }
  // Absolute, because workers get paths in it, and a worker may change its working directory.
  tree.job_folder_ = fs::absolute(*job);
  if (!log_dir.empty()) point_latest_at(tree.job_folder_);
  return tree;
}

std::string LogTree::attempt_path(int attempt) const {
  return enabled() ? fmt::format("{}/attempt_{}", job_folder_, attempt) : std::string();
}

std::string LogTree::worker_path(int attempt, int local_rank) const {
  return enabled() ? fmt::format("{}/{}", attempt_path(attempt), local_rank) : std::string();
}

Result<std::string> LogTree::attempt_folder(int attempt) const {
  return make_folder(attempt_path(attempt));
}

Result<std::string> LogTree::worker_folder(int attempt, int local_rank) const {
  return make_folder(worker_path(attempt, local_rank));
}

Result<FileHandle> LogTree::open(const std::string& folder, const std::string& name) {
  const std::string path = folder + "/" + name;
  // O_APPEND: somebody may truncate the file of a running job (logrotate's copytruncate). Without
  // the flag the next write would leave a hole of zero bytes before it.
  constexpr int kFlags = O_WRONLY | O_CREAT | O_APPEND | O_NOFOLLOW | O_CLOEXEC;
  constexpr mode_t mode = 0644;
  FileHandle file(::open(path.c_str(), kFlags, mode));
  if (file.get() < 0) return failed("open the log file", path, errno);
  return file;
}

std::vector<std::string> LogTree::tail(const std::string& path, std::size_t lines,
                                       std::size_t max_bytes) {
  const FileHandle file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  const off_t size = ::lseek(file.get(), 0, SEEK_END);
  if (size <= 0) return {};
  std::string end(std::min(static_cast<std::size_t>(size), max_bytes), '\0');
  const ssize_t got =
      ::pread(file.get(), end.data(), end.size(), size - static_cast<off_t>(end.size()));
  end.resize(got < 0 ? 0 : static_cast<std::size_t>(got));
  return last_lines(end, lines);
}

void LogTree::clean_up(bool keep_files) const {
  if (!temporary_root_.empty()) remove_temporary_logs(temporary_root_, keep_files);
}

void remove_temporary_logs(const std::string& root, bool keep_files) {
  if (keep_files && holds_a_file(root)) return;
  std::error_code ignored;
  fs::remove_all(root, ignored);
}

}  // namespace ddprun::agent
