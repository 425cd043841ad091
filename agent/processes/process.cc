#include "agent/processes/process.h"

#include <fmt/format.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <fstream>
#include <iterator>
#include <sstream>
#include <string>
#include <string_view>

namespace ddprun::agent {
namespace {

std::string first_line_of(pid_t pid, std::string_view name) {
  std::ifstream file(fmt::format("/proc/{}/{}", pid, name));
  std::string line;
  std::getline(file, line);
  return line;
}

}  // namespace

std::optional<ProcessStat> read_process_stat(pid_t pid) {
  std::ifstream file(fmt::format("/proc/{}/stat", pid));
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  const auto name_end = text.rfind(')');  // the name in field 2 may hold anything, also ')'
  if (name_end == std::string::npos) return std::nullopt;
  std::istringstream fields(text.substr(name_end + 1));
  ProcessStat stat;
  if (!(fields >> stat.state >> stat.parent)) return std::nullopt;
  constexpr int kAfterParent = 5;
  constexpr int kStartTime = 22;
  std::string skipped;
  for (int number = kAfterParent; number < kStartTime; ++number) fields >> skipped;
  if (!(fields >> stat.started)) return std::nullopt;
  return stat;
}

std::string process_name(pid_t pid) { return first_line_of(pid, "comm"); }

std::string wait_channel(pid_t pid) {
  std::string channel = first_line_of(pid, "wchan");
  return channel.empty() || channel == "0" ? "?" : channel;
}

FileHandle open_pidfd(pid_t pid) {
  // syscall() returns long; a file descriptor fits in an int.
  return FileHandle(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
}

}  // namespace ddprun::agent
