#include "agent/processes/leftovers.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <string_view>

#include "agent/processes/containment.h"
#include "agent/processes/job_cgroup.h"
#include "agent/processes/job_cookie.h"
#include "agent/processes/process.h"

namespace ddprun::agent {
namespace {

namespace fs = std::filesystem;

constexpr pid_t kInit = 1;

// The names in `folder`; those read before it fails.
std::vector<std::string> names_in(const std::string& folder) {
  std::vector<std::string> names;
  std::error_code failed;
  for (fs::directory_iterator entry(folder, failed), end; !failed && entry != end;
       entry.increment(failed))
    names.push_back(entry->path().filename());
  return names;
}

std::map<pid_t, Process> all_processes() {
  std::map<pid_t, Process> processes;
  for (const std::string& name : names_in("/proc")) {
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    const pid_t pid = std::atoi(name.c_str());
    const auto stat = read_process_stat(pid);
    const auto cookie = cookie_of_process(pid);
    processes[pid] = {stat ? stat->parent : 0,
                      cookie ? std::optional(cookie->text()) : std::nullopt};
  }
  return processes;
}

std::set<std::string> gone_launchers(const std::map<pid_t, Process>& processes) {
  std::set<std::string> gone;
  for (const auto& [pid, process] : processes) {
    if (!process.cookie || gone.contains(*process.cookie)) continue;
    const auto cookie = parse_job_cookie(*process.cookie);
    if (cookie && launcher_is_gone(*cookie)) gone.insert(*process.cookie);
  }
  return gone;
}

// The number may be another process's by now: looks again once a descriptor holds the process.
bool kill_if_still(pid_t pid, const Process& as_seen) {
  const FileHandle process = open_pidfd(pid);
  if (process.get() < 0) return false;
  const auto cookie = cookie_of_process(pid);
  if (!cookie || cookie->text() != as_seen.cookie) return false;
  return ::syscall(SYS_pidfd_send_signal, process.get(), SIGKILL, nullptr, 0) == 0;
}

// Calls `act` with what follows `prefix` in the names of `folder`, for launchers that are gone.
template <typename Act>
void for_each_gone(const std::string& folder, const std::string& prefix, Act act) {
  for (const std::string& name : names_in(folder)) {
    if (!name.starts_with(prefix)) continue;
    const auto cookie = parse_job_cookie(std::string_view(name).substr(prefix.size()));
    if (cookie && launcher_is_gone(*cookie)) act(cookie->text());
  }
}

void end_cgroups() {
  const std::string folder = own_cgroup_folder();
  if (!folder.empty()) for_each_gone(folder, kCgroupPrefix, end_job_cgroup);
}

}  // namespace

std::vector<pid_t> orphans_of(const std::map<pid_t, Process>& processes,
                              const std::set<std::string>& gone, pid_t self) {
  const auto known = [&processes](pid_t pid) { return processes.contains(pid); };
  std::set<pid_t> ours;
  std::set<std::string> innocent;
  for (pid_t pid = self; known(pid) && ours.insert(pid).second; pid = processes.at(pid).parent) {
    if (processes.at(pid).cookie) innocent.insert(*processes.at(pid).cookie);
  }
  std::vector<pid_t> orphans;
  for (const auto& [pid, process] : processes) {
    if (!process.cookie || !gone.contains(*process.cookie) || innocent.contains(*process.cookie))
      continue;
    pid_t top = pid;
    std::size_t steps = 0;  // a list read while processes move may even hold a circle
    while (known(processes.at(top).parent) && steps++ < processes.size() &&
           processes.at(processes.at(top).parent).cookie == process.cookie)
      top = processes.at(top).parent;
    if (processes.at(top).parent == kInit && !ours.contains(pid)) orphans.push_back(pid);
  }
  return orphans;
}

std::size_t end_leftovers() {
  end_cgroups();
  const std::map<pid_t, Process> processes = all_processes();
  std::size_t ended = 0;
  for (const pid_t pid : orphans_of(processes, gone_launchers(processes), ::getpid())) {
    if (kill_if_still(pid, processes.at(pid))) ++ended;
  }
  for_each_gone("/dev/shm", "ddprun-", remove_shared_memory);
  end_cgroups();  // empty by now, most likely
  return ended;
}

}  // namespace ddprun::agent
