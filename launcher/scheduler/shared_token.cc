#include "launcher/scheduler/shared_token.h"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cctype>
#include <cstddef>
#include <ctime>
#include <memory>
#include <string_view>
#include <utility>

#include "base/file_handle.h"
#include "base/random_number.h"
#include "proto/scheduler_variables.h"

namespace ddprun::launcher {

namespace names = scheduler_variables;

namespace {

constexpr const char* kFolder = ".ddprun";
constexpr std::size_t kSecretBytes = 32;
constexpr std::size_t kDraftBytes = 8;  // of the name of a draft
constexpr std::size_t kMostOfName = 100;
constexpr std::time_t kKeptSeconds = std::time_t{30} * 24 * 3600;

std::string value_of(const EnvLookup& env, std::string_view name) { return env(name).value_or(""); }

// Makes the name of a file from others' words.
std::string as_name(std::string text) {
  for (char& letter : text) {
    const auto byte = static_cast<unsigned char>(letter);
    if (std::isalnum(byte) == 0 && letter != '.' && letter != '_') letter = '-';
  }
  return text.substr(0, kMostOfName);
}

// Ours, and nobody else changes what is in it.
FileHandle open_folder(const std::string& path) {
  FileHandle folder(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  struct stat status {};
  const bool is_ours = folder.get() >= 0 && ::fstat(folder.get(), &status) == 0 &&
                       status.st_uid == ::geteuid() && (status.st_mode & 022) == 0;
  return is_ours ? std::move(folder) : FileHandle();
}

std::optional<std::string> read_in(const FileHandle& folder, const std::string& name) {
  const FileHandle file(
      ::openat(folder.get(), name.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK));
  struct stat status {};
  if (file.get() < 0 || ::fstat(file.get(), &status) != 0 || !S_ISREG(status.st_mode) ||
      status.st_uid != ::geteuid() || (status.st_mode & 077) != 0)
    return std::nullopt;
  std::string text(2 * kSecretBytes, '\0');
  if (::read(file.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size()))
    return std::nullopt;
  return text;
}

// The jobs of these files ended long ago.
void forget_old(const FileHandle& folder) {
  const std::unique_ptr<DIR, int (*)(DIR*)> entries(
      ::fdopendir(::openat(folder.get(), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC)), ::closedir);
  const std::time_t oldest = std::time(nullptr) - kKeptSeconds;
  // NOLINTNEXTLINE(concurrency-mt-unsafe): each stream has one reader (readdir(3))
  while (const dirent* entry = entries ? ::readdir(entries.get()) : nullptr) {
    struct stat status {};
    const std::string_view name = entry->d_name;
    const bool is_ours = name.find("slurm-") < 2 || name.find("mpi-") < 2;
    if (is_ours && ::fstatat(folder.get(), entry->d_name, &status, AT_SYMLINK_NOFOLLOW) == 0 &&
        S_ISREG(status.st_mode) && status.st_mtime < oldest)
      ::unlinkat(folder.get(), entry->d_name, 0);
  }
}

// Under a random name, and linked to the right one when it is whole. Somebody may have been faster.
void make_in(const FileHandle& folder, const std::string& name) {
  const std::string secret = random_hex(kSecretBytes);
  const std::string draft = "." + name + "." + random_hex(kDraftBytes);
  const FileHandle file(::openat(folder.get(), draft.c_str(),
                                 O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (file.get() < 0) return;
  const std::string line = secret + "\n";
  if (::write(file.get(), line.data(), line.size()) == static_cast<ssize_t>(line.size()) &&
      ::fsync(file.get()) == 0) [[maybe_unused]]
    const int linked = ::linkat(folder.get(), draft.c_str(), folder.get(), name.c_str(), 0);
  ::unlinkat(folder.get(), draft.c_str(), 0);
}

struct Split {
  std::string folder;
  std::string name;
};
Split split(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  return {path.substr(0, slash), path.substr(slash + 1)};
}

}  // namespace

std::optional<std::string> shared_token_path(const EnvLookup& env) {
  const std::string home = value_of(env, "HOME");
  if (!home.starts_with('/')) return std::nullopt;
  std::string job = value_of(env, names::kSlurmComponentsJob);
  if (job.empty()) job = value_of(env, names::kSlurmJob.job);
  if (!job.empty())
    return fmt::format("{}/{}/slurm-{}-{}", home, kFolder,
                       as_name(value_of(env, names::kSlurmCluster)), as_name(job));
  const std::string space = value_of(env, names::kPmixNamespace);
  if (space.empty()) return std::nullopt;
  return fmt::format("{}/{}/mpi-{}", home, kFolder, as_name(space));
}

std::optional<std::string> read_shared_token(const std::string& path) {
  const Split file = split(path);
  const FileHandle folder = open_folder(file.folder);
  return folder.get() < 0 ? std::nullopt : read_in(folder, file.name);
}

std::optional<std::string> make_shared_token(const std::string& path) {
  const Split file = split(path);
  ::mkdir(file.folder.c_str(), 0700);
  const FileHandle folder = open_folder(file.folder);
  if (folder.get() < 0) return std::nullopt;
  if (auto there = read_in(folder, file.name)) return there;
  forget_old(folder);
  make_in(folder, file.name);
  return read_in(folder, file.name);
}

}  // namespace ddprun::launcher
