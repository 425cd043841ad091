#include "agent/standby/shown_environment.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <string_view>

#include "agent/processes/process.h"
#include "base/file_handle.h"
#include "proto/standby.h"

namespace ddprun::agent {
namespace {

std::string_view name_of(std::string_view entry) { return entry.substr(0, entry.find('=')); }

}  // namespace

void hide_variables(Variables& env) {
  for (const char* name : kHiddenVariables) {
    const auto found = find_variable(env, name);
    if (found != env.end()) found->replace(0, std::strlen(name), hidden_name(name));
  }
}

void show_environment(pid_t pid, const Variables& env) {
  constexpr int kEnvironmentStart = 50;  // 0: we may not know
  const auto address = static_cast<off_t>(read_stat_number(pid, kEnvironmentStart).value_or(0));
  const std::string shown = read_proc_file(pid, "environ");
  const FileHandle memory(::open(fmt::format("/proc/{}/mem", pid).c_str(), O_WRONLY | O_CLOEXEC));
  if (address == 0 || memory.get() < 0) return;
  for (std::size_t at = 0; at < shown.size();) {
    const std::string_view entry(shown.c_str() + at);
    const auto fits = std::ranges::find_if(env, [&](const std::string& wanted) {
      return wanted.size() == entry.size() && wanted != entry &&
             (name_of(wanted) == name_of(entry) || hidden_name(name_of(wanted)) == name_of(entry));
    });
    if (fits != env.end() &&
        ::pwrite(memory.get(), fits->data(), fits->size(), address + static_cast<off_t>(at)) < 0)
      return;
    at += entry.size() + 1;
  }
}

}  // namespace ddprun::agent
