#include "agent/processes/process.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <filesystem>
#include <sstream>
#include <string>
#include <string_view>

#include "base/new_calls.h"

namespace ddprun::agent {
namespace {

std::string first_line_of(pid_t pid, std::string_view name) {
  const std::string text = read_proc_file(pid, name);
  return text.substr(0, text.find('\n'));
}

// The fields of /proc/<pid>/stat from the third on; none if the process is gone. Field 2 is the
// name in brackets, and the name may hold anything, also blanks and ')'.
std::istringstream behind_the_name(pid_t pid) {
  const std::string text = read_proc_file(pid, "stat");
  const auto name_end = text.rfind(')');
  return std::istringstream(name_end == std::string::npos ? "" : text.substr(name_end + 1));
}

}  // namespace

std::string read_proc_file(pid_t pid, std::string_view name) {
  const std::string path = fmt::format("/proc/{}/{}", pid, name);
  const FileHandle file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  std::string text;
  // No stream: libstdc++'s file buffer throws if a read fails, and a process may end meanwhile.
  std::array<char, 4096> part{};
  while (file.get() >= 0) {
    const ssize_t got = ::read(file.get(), part.data(), part.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return {};  // ESRCH: the process has just ended
    if (got == 0) break;
    text.append(part.data(), static_cast<std::size_t>(got));
  }
  return text;
}

std::optional<ProcessStat> read_process_stat(pid_t pid) {
  std::istringstream fields = behind_the_name(pid);
  ProcessStat stat;
  std::string skipped;  // field 5, the process group
  if (!(fields >> stat.state >> stat.parent >> skipped >> stat.session)) return std::nullopt;
  constexpr int kAfterSession = 7;
  constexpr int kStartTime = 22;
  for (int number = kAfterSession; number < kStartTime; ++number) fields >> skipped;
  if (!(fields >> stat.started)) return std::nullopt;
  return stat;
}

std::optional<std::int64_t> read_stat_number(pid_t pid, int place) {
  const std::vector<std::int64_t> found = read_stat_numbers(pid, place, place);
  return found.empty() ? std::nullopt : std::optional(found.front());
}

std::vector<std::int64_t> read_stat_numbers(pid_t pid, int first, int last) {
  constexpr int kState = 3;
  std::istringstream fields = behind_the_name(pid);
  std::string skipped;
  for (int number = kState; number < first; ++number) fields >> skipped;
  std::vector<std::int64_t> numbers(static_cast<std::size_t>(last - first + 1));
  for (std::int64_t& number : numbers)
    if (!(fields >> number)) return {};
  return numbers;
}

std::optional<std::uint64_t> resident_bytes(pid_t pid) {
  constexpr int kResidentPages = 24;
  const auto pages = read_stat_number(pid, kResidentPages);
  if (!pages || *pages < 0) return std::nullopt;
  return static_cast<std::uint64_t>(*pages) * static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
}

std::string process_name(pid_t pid) { return first_line_of(pid, "comm"); }

std::string wait_channel(pid_t pid) {
  // "0": the process runs, or we may not trace it (proc_pid_wchan(5)).
  std::string channel = first_line_of(pid, "wchan");
  return channel.empty() || channel == "0" ? "?" : channel;
}

bool proc_is_ours() {
  std::error_code failed;
  return std::filesystem::read_symlink("/proc/self", failed) == std::to_string(::getpid());
}

bool kill_process(const FileHandle& process, pid_t pid) {
  if (process.get() < 0 || !has_call(NewCall::kPidfdSendSignal)) return ::kill(pid, SIGKILL) == 0;
  return ::syscall(SYS_pidfd_send_signal, process.get(), SIGKILL, nullptr, 0) == 0;
}

}  // namespace ddprun::agent
