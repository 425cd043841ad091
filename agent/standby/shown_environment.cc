#include "agent/standby/shown_environment.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <sstream>
#include <string_view>

#include "agent/processes/process.h"
#include "proto/file_handle.h"

namespace ddprun::agent {
namespace {

constexpr std::array<std::string_view, 2> kRanks = {"RANK=", "LOCAL_RANK="};

std::string hidden(std::string_view entry) { return "?" + std::string(entry.substr(1)); }

std::string_view name_of(std::string_view entry) { return entry.substr(0, entry.find('=') + 1); }

// Where the memory begins; 0: we may not know (proc_pid_stat(5), env_start).
off_t environment_address(pid_t pid) {
  const std::string text = read_proc_file(pid, "stat");
  const auto name_end = text.rfind(')');
  if (name_end == std::string::npos) return 0;
  std::istringstream fields(text.substr(name_end + 1));
  constexpr int kState = 3;
  constexpr int kEnvironmentStart = 50;
  std::string skipped;
  for (int number = kState; number < kEnvironmentStart; ++number) fields >> skipped;
  off_t address = 0;
  return fields >> address ? address : 0;
}

}  // namespace

void hide_rank(std::vector<std::string>& env) {
  for (std::string& entry : env) {
    if (std::ranges::find(kRanks, name_of(entry)) != kRanks.end()) entry = hidden(entry);
  }
}

void show_environment(pid_t pid, const std::vector<std::string>& env) {
  const off_t address = environment_address(pid);
  const std::string shown = read_proc_file(pid, "environ");
  const FileHandle memory(::open(fmt::format("/proc/{}/mem", pid).c_str(), O_WRONLY | O_CLOEXEC));
  if (address == 0 || memory.get() < 0) return;
  for (std::size_t at = 0; at < shown.size();) {
    const std::string_view entry(shown.c_str() + at);
    const auto fits = std::ranges::find_if(env, [&](const std::string& wanted) {
      return wanted.size() == entry.size() && wanted != entry &&
             (name_of(wanted) == name_of(entry) || hidden(name_of(wanted)) == name_of(entry));
    });
    if (fits != env.end() &&
        ::pwrite(memory.get(), fits->data(), fits->size(), address + static_cast<off_t>(at)) < 0)
      return;
    at += entry.size() + 1;
  }
}

}  // namespace ddprun::agent
