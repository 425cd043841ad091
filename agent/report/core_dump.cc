#include "agent/report/core_dump.h"

#include <fmt/format.h>
#include <glob.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <optional>

namespace ddprun::agent {
namespace {

using SystemTime = std::chrono::system_clock::time_point;

std::string first_line(const char* path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

// Both texts of one path. A character that glob(3) would read as a wildcard is quoted.
struct Texts {
  std::string shown;
  std::string glob;

  void add(std::string_view known) {
    shown += known;
    for (const char c : known) {
      if (std::string_view("*?[\\").find(c) != std::string_view::npos) glob += '\\';
      glob += c;
    }
  }
  void add_unknown(char specifier) {
    shown += {'%', specifier};
    glob += '*';
  }
};

// Adds the text of one %-specifier of core(5). Adds nothing for one that the kernel leaves out.
void add_specifier(char specifier, const std::string& pid, int signo, Texts& texts) {
  if (specifier == '%') texts.add("%");
  if (specifier == 'p') texts.add(pid);
  if (specifier == 's') texts.add(std::to_string(signo));
  if (std::string_view("PiIugdtheEcCF").find(specifier) != std::string_view::npos)
    texts.add_unknown(specifier);
}

// Returns the first word of a pattern that hands cores to a program. The program's arguments tell
// people nothing.
std::string program_of(std::string_view pattern) {
  pattern.remove_prefix(pattern.starts_with('|') ? 1 : 0);
  pattern.remove_prefix(std::min(pattern.find_first_not_of(' '), pattern.size()));
  return std::string(pattern.substr(0, pattern.find(' ')));
}

// The newest file that the pattern names and that is not older than `since`.
std::optional<std::string> newest(const std::string& pattern, SystemTime since) {
  glob_t found{};
  std::optional<std::string> best;
  timespec best_time{};
  // NOLINTNEXTLINE(concurrency-mt-unsafe): glob(3) says so of patterns with ~ alone
  if (::glob(pattern.c_str(), 0, nullptr, &found) == 0) {
    for (std::size_t i = 0; i < found.gl_pathc; ++i) {
      struct stat facts {};
      if (::stat(found.gl_pathv[i], &facts) != 0 || !S_ISREG(facts.st_mode)) continue;
      const timespec& at = facts.st_mtim;
      if (at.tv_sec < std::chrono::system_clock::to_time_t(since)) continue;
      const bool is_later = at.tv_sec > best_time.tv_sec ||
                            (at.tv_sec == best_time.tv_sec && at.tv_nsec >= best_time.tv_nsec);
      if (!is_later) continue;
      constexpr double kMebibyte = 1 << 20;
      best = fmt::format("{} ({:.1f} MiB)", found.gl_pathv[i],
                         static_cast<double>(facts.st_size) / kMebibyte);
      best_time = at;
    }
  }
  ::globfree(&found);
  return best;
}

}  // namespace

CorePlace core_place(std::string_view pattern, bool uses_pid, int pid, int signo,
                     const std::string& folder) {
  // A pipe, or a socket (Linux 6.16).
  if (pattern.starts_with('|') || pattern.starts_with('@')) return {.program = program_of(pattern)};
  Texts texts;
  const std::string number = std::to_string(pid);
  if (!pattern.starts_with('/') && !folder.empty()) texts.add(folder + "/");
  bool has_pid = false;
  for (std::size_t at = 0; at < pattern.size(); ++at) {
    if (pattern[at] != '%') {
      texts.add(pattern.substr(at, 1));
      continue;
    }
    if (++at == pattern.size()) break;  // the kernel leaves it out, and what it does not know, too
    add_specifier(pattern[at], number, signo, texts);
    has_pid = has_pid || pattern[at] == 'p';
  }
  if (uses_pid && !has_pid) texts.add("." + number);
  return {.shown = texts.shown, .glob = texts.glob};
}

std::string find_core(int pid, int signo, SystemTime since) {
  std::error_code failed;
  const std::string folder = std::filesystem::current_path(failed).string();
  const CorePlace place =
      core_place(first_line("/proc/sys/kernel/core_pattern"),
                 first_line("/proc/sys/kernel/core_uses_pid") != "0", pid, signo, folder);
  const std::string& program = place.program;
  if (program.ends_with("systemd-coredump"))
    return fmt::format("handed to {}; see `coredumpctl info {}`", program, pid);
  if (!program.empty()) return fmt::format("handed to {} (kernel.core_pattern)", program);
  if (const auto file = newest(place.glob, since)) return *file;
  return place.shown + " (kernel.core_pattern), or in the folder to which the worker has changed";
}

}  // namespace ddprun::agent
