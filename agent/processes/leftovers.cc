#include "agent/processes/leftovers.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <string_view>
#include <utility>

#include "agent/processes/containment.h"
#include "agent/processes/job_cgroup.h"
#include "agent/processes/job_cookie.h"
#include "agent/processes/process.h"
#include "agent/processes/scratch_folder.h"

namespace ddprun::agent {
namespace {

namespace fs = std::filesystem;

constexpr pid_t kInit = 1;

// The names in `folder`. On an error, those that were read until then: no throw.
std::vector<std::string> names_in(const std::string& folder) {
  std::vector<std::string> names;
  std::error_code failed;
  for (fs::directory_iterator entry(folder, failed), end; !failed && entry != end;
       entry.increment(failed))
    names.push_back(entry->path().filename());
  return names;
}

// True for init, for systemd as a manager of a user's services, and for the first process of a pid
// namespace below ours: NSpid lists its numbers, and the last one is 1 (proc_pid_status(5)).
bool is_reaper(pid_t pid) {
  if (pid == kInit || process_name(pid) == "systemd") return true;
  const std::string status = read_proc_file(pid, "status");
  const auto line = status.find("\nNSpid:");
  if (line == std::string::npos) return false;
  const std::string numbers = status.substr(line + 1, status.find('\n', line + 1) - line - 1);
  return numbers.ends_with("\t1");
}

// Every process, with its cookie only.
std::map<pid_t, Process> all_cookies() {
  std::map<pid_t, Process> processes;
  for (const std::string& name : names_in("/proc")) {
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    const pid_t pid = std::atoi(name.c_str());
    const auto cookie = cookie_of_process(pid);
    processes[pid].cookie = cookie ? std::optional(cookie->text()) : std::nullopt;
  }
  return processes;
}

// Adds the rest of what orphans_of() must know.
void add_families(std::map<pid_t, Process>& processes) {
  for (auto& [pid, process] : processes) {
    const auto stat = read_process_stat(pid);
    if (!stat) continue;
    process.parent = stat->parent;
    process.session = stat->session;
  }
  // Only for parents of a process with a cookie: a host may have very many processes.
  for (const auto& [pid, process] : processes) {
    const auto parent = processes.find(process.parent);
    if (process.cookie && parent != processes.end())
      parent->second.is_reaper = is_reaper(parent->first);
  }
}

std::set<std::string> gone_launchers(const std::map<pid_t, Process>& processes) {
  std::set<std::string> seen;
  std::set<std::string> gone;
  for (const auto& [pid, process] : processes) {
    if (!process.cookie || !seen.insert(*process.cookie).second) continue;
    const auto cookie = parse_job_cookie(*process.cookie);
    if (cookie && launcher_is_gone(*cookie)) gone.insert(*process.cookie);
  }
  return gone;
}

// Meanwhile the pid may belong to another process. So this opens a descriptor, which never means
// another process, and compares the cookie once more before it kills.
bool kill_if_still(pid_t pid, const Process& as_seen) {
  const FileHandle process = open_pidfd(pid);
  if (process.get() < 0) return false;
  const auto cookie = cookie_of_process(pid);
  if (!cookie || cookie->text() != as_seen.cookie) return false;
  return ::syscall(SYS_pidfd_send_signal, process.get(), SIGKILL, nullptr, 0) == 0;
}

// Calls `act` with each cookie behind `prefix` in one of `names`, if its launcher is gone.
template <typename Act>
void for_each_gone(const std::vector<std::string>& names, const std::string& prefix, Act act) {
  for (const std::string& name : names) {
    if (!name.starts_with(prefix)) continue;
    const auto cookie = parse_job_cookie(std::string_view(name).substr(prefix.size()));
    if (cookie && launcher_is_gone(*cookie)) act(cookie->text());
  }
}

// Finds cgroups below our own one only: those of launchers that ran in the same cgroup.
void end_cgroups() {
  const std::string folder = own_cgroup_folder();
  if (!folder.empty()) for_each_gone(names_in(folder), kCgroupPrefix, end_job_cgroup);
}

// By the rules of leftovers.h. `is_above_us`: `parent` is this process or an ancestor of it.
bool took_in(const Process& parent, const std::pair<pid_t, const Process&>& orphan,
             bool is_above_us) {
  const auto& [pid, process] = orphan;
  if (parent.is_reaper) return true;
  const bool is_inherited = process.session != pid && process.session != parent.session;
  return is_inherited || (is_above_us && process.session != parent.session);
}

}  // namespace

std::vector<pid_t> orphans_of(const std::map<pid_t, Process>& processes,
                              const std::set<std::string>& gone, pid_t self) {
  const auto known = [&processes](pid_t pid) { return processes.contains(pid); };
  // We may run with an old cookie ourselves: a worker may have started this job. Then no process
  // with that cookie is a leftover for us.
  std::set<pid_t> ours;
  std::set<std::string> innocent;
  for (pid_t pid = self; known(pid) && ours.insert(pid).second; pid = processes.at(pid).parent) {
    if (processes.at(pid).cookie) innocent.insert(*processes.at(pid).cookie);
  }
  // The end of the way up from `pid` through processes with the same cookie.
  const auto top_of = [&](pid_t pid) {
    const auto& cookie = processes.at(pid).cookie;
    // The list was read while processes moved, so it may even hold a circle.
    std::size_t steps = 0;
    while (known(processes.at(pid).parent) && steps++ < processes.size() &&
           processes.at(processes.at(pid).parent).cookie == cookie)
      pid = processes.at(pid).parent;
    return pid;
  };
  std::map<pid_t, pid_t> tops;
  // Who took in an orphan of which job. A second pass is needed: all processes of that job below
  // this parent are then leftovers, also those that show no sign of it.
  std::set<std::pair<pid_t, std::string>> takers;
  for (const auto& [pid, process] : processes) {
    if (!process.cookie || !gone.contains(*process.cookie) || innocent.contains(*process.cookie) ||
        ours.contains(pid))
      continue;
    const pid_t top = top_of(pid);
    tops[pid] = top;
    const pid_t parent = processes.at(top).parent;
    if (known(parent) &&
        took_in(processes.at(parent), {top, processes.at(top)}, ours.contains(parent)))
      takers.insert({parent, *process.cookie});
  }
  std::vector<pid_t> orphans;
  for (const auto& [pid, top] : tops) {
    if (takers.contains({processes.at(top).parent, *processes.at(pid).cookie}))
      orphans.push_back(pid);
  }
  return orphans;
}

namespace {

// Those of all jobs. `processes` becomes what was seen of all processes.
std::vector<pid_t> find_orphans(std::map<pid_t, Process>& processes) {
  processes = all_cookies();
  const std::set<std::string> gone = gone_launchers(processes);
  if (gone.empty()) return {};  // mostly: then half of the reading is spared
  add_families(processes);
  return orphans_of(processes, gone, ::getpid());
}

std::size_t end_orphans() {
  std::map<pid_t, Process> processes;
  std::size_t ended = 0;
  for (const pid_t pid : find_orphans(processes)) {
    if (kill_if_still(pid, processes.at(pid))) ++ended;
  }
  return ended;
}

}  // namespace

std::size_t count_leftovers() {
  std::map<pid_t, Process> processes;
  return find_orphans(processes).size();
}

std::size_t end_leftovers() {
  end_cgroups();
  const std::size_t ended = end_orphans();
  const std::vector<std::string> in_memory = names_in(kScratchBase);
  for_each_gone(in_memory, "ddprun-", remove_shared_memory);
  for_each_gone(in_memory, kScratchPrefix, remove_scratch_folder);
  // The first call killed what was in them; a cgroup can be removed only when it is empty.
  end_cgroups();
  return ended;
}

}  // namespace ddprun::agent
