#include "agent/processes/orphans.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <span>
#include <utility>

#include "agent/processes/containment.h"
#include "agent/processes/folder_names.h"
#include "agent/processes/job_cgroup.h"
#include "agent/processes/job_cookie.h"
#include "agent/processes/owner_lock.h"
#include "agent/processes/process.h"
#include "agent/processes/scratch_folder.h"
#include "base/process_end.h"

namespace ddprun::agent {
namespace {

namespace fs = std::filesystem;

constexpr pid_t kInit = 1;
constexpr std::chrono::milliseconds kEndOfKilled{100};
// The host's first pid namespace has all processes in its /proc (linux/proc_ns.h).
constexpr std::uint64_t kFirstNamespace = 0xEFFFFFFC;

// True for init, and for systemd as a manager of a user's services. True for the first process of a
// pid namespace below ours. NSpid lists its numbers, and the last one is 1 (proc_pid_status(5)).
bool is_reaper(pid_t pid) {
  if (pid == kInit || process_name(pid) == "systemd") return true;
  const std::string status = read_proc_file(pid, "status");
  const auto line = status.find("\nNSpid:");
  if (line == std::string::npos) return false;
  const std::string numbers = status.substr(line + 1, status.find('\n', line + 1) - line - 1);
  return numbers.ends_with("\t1");
}

// As the name of a process in /proc.
bool is_number(const std::string& name) {
  return name.find_first_not_of("0123456789") == std::string::npos;
}

// Every process, with its cookie only.
std::map<pid_t, ProcessEntry> all_cookies() {
  std::map<pid_t, ProcessEntry> processes;
  for (const std::string& name : names_in("/proc")) {
    if (!is_number(name)) continue;
    const pid_t pid = std::atoi(name.c_str());
    const auto cookie = cookie_of_process(pid);
    processes[pid].cookie = cookie ? std::optional(cookie->text()) : std::nullopt;
  }
  return processes;
}

// Adds the rest of what orphans_of() must know.
void add_families(std::map<pid_t, ProcessEntry>& processes) {
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

// Returns the owner of a file or a process (proc(5): the owner of /proc/<pid>). Nothing if it is
// gone.
std::optional<uid_t> owner_of(const std::string& path) {
  struct stat facts {};
  return ::lstat(path.c_str(), &facts) == 0 ? std::optional(facts.st_uid) : std::nullopt;
}

bool may_own(const GoneJob& job, const std::string& path) {
  const auto owner = owner_of(path);
  return owner && job.may_own(*owner);
}

// Meanwhile the pid may belong to another process. So this opens a descriptor, which never means
// another process, and compares cookie and owner once more before it kills. Without descriptors the
// kill follows the comparison at once: a pid comes again after all others have been used.
bool kill_if_still(pid_t pid, const GoneJob& job) {
  const FileHandle process = open_pidfd(pid);
  const auto cookie = cookie_of_process(pid);
  if (!cookie || cookie->text() != job.cookie || !may_own(job, fmt::format("/proc/{}", pid)))
    return false;
  return kill_process(process, pid);
}

// Finds cgroups below our own one only: those of launchers that ran in the same cgroup.
void end_cgroup(const GoneJob& job) {
  const std::string folder = own_cgroup_folder();
  if (folder.empty()) return;
  for (const std::string& name : names_in(folder)) {
    if (name.starts_with(kCgroupPrefix + job.cookie) &&
        may_own(job, fmt::format("{}/{}", folder, name)))
      return end_job_cgroup(job.cookie);
  }
}

// The shared memory and the scratch folders of jobs that are gone.
void remove_files(std::span<const GoneJob> gone) {
  for (const std::string& name : names_in(kScratchBase)) {
    if (!name.starts_with("ddprun")) continue;
    const std::string path = fmt::format("{}/{}", kScratchBase, name);
    std::error_code ignored;
    for (const GoneJob& job : gone) {
      if ((name.starts_with(kSharedMemoryPrefix + job.cookie) ||
           name == kScratchPrefix + job.cookie) &&
          may_own(job, path))
        fs::remove_all(path, ignored);
    }
  }
}

// By the rules of orphans.h. `is_above_us`: `parent` is this process or an ancestor of it.
bool took_in(const ProcessEntry& parent, const std::pair<pid_t, const ProcessEntry&>& orphan,
             bool is_above_us) {
  const auto& [pid, process] = orphan;
  if (parent.is_reaper) return true;
  const bool is_inherited = process.session != pid && process.session != parent.session;
  return is_inherited || (is_above_us && process.session != parent.session);
}

// A process and its ancestors, and the cookies that they have.
struct Line {
  std::set<pid_t> pids;
  std::set<std::string> cookies;
};

Line line_of(pid_t self, const std::map<pid_t, ProcessEntry>& processes) {
  Line line;
  for (auto one = processes.find(self);
       one != processes.end() && line.pids.insert(one->first).second;
       one = processes.find(one->second.parent)) {
    if (one->second.cookie) line.cookies.insert(*one->second.cookie);
  }
  return line;
}

// The end of the way up from `pid` through processes with the same cookie.
pid_t top_of(pid_t pid, const std::map<pid_t, ProcessEntry>& processes) {
  const auto& cookie = processes.at(pid).cookie;
  // The list was read while processes moved, so it may even hold a circle.
  for (std::size_t steps = 0; steps < processes.size(); ++steps) {
    const auto parent = processes.find(processes.at(pid).parent);
    if (parent == processes.end() || parent->second.cookie != cookie) break;
    pid = parent->first;
  }
  return pid;
}

}  // namespace

std::vector<pid_t> orphans_of(const std::map<pid_t, ProcessEntry>& processes,
                              const std::set<std::string>& gone, pid_t self) {
  // We may run with an old cookie ourselves: a worker may have started this job. Then no process
  // with that cookie is an orphan for us.
  const Line ours = line_of(self, processes);
  std::map<pid_t, pid_t> tops;
  // The processes that took in orphans, and of which job. A second pass is needed. All processes of
  // that job below this parent are then orphans, also those that show no sign of it.
  std::set<std::pair<pid_t, std::string>> takers;
  for (const auto& [pid, process] : processes) {
    if (!process.cookie || !gone.contains(*process.cookie) ||
        ours.cookies.contains(*process.cookie) || ours.pids.contains(pid))
      continue;
    const pid_t top = top_of(pid, processes);
    tops[pid] = top;
    const pid_t parent = processes.at(top).parent;
    if (processes.contains(parent) &&
        took_in(processes.at(parent), {top, processes.at(top)}, ours.pids.contains(parent)))
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

// Returns the jobs whose processes would be in our /proc. They come first in `gone` then.
std::span<const GoneJob> seen_here(std::vector<GoneJob>& gone) {
  const std::uint64_t own = pid_namespace_of("self");
  const auto is_ours = [own](const GoneJob& job) {
    return own == kFirstNamespace || job.pid_namespace == 0 || job.pid_namespace == own;
  };
  std::set<std::uint64_t> below;
  if (!std::ranges::all_of(gone, is_ours)) {
    for (const std::string& name : names_in("/proc"))
      if (is_number(name)) below.insert(pid_namespace_of(name));
  }
  const auto hidden = std::partition(gone.begin(), gone.end(), [&](const GoneJob& job) {
    return is_ours(job) || below.contains(job.pid_namespace);
  });
  return {gone.begin(), hidden};
}

std::set<std::string> cookies_of(std::span<const GoneJob> jobs) {
  std::set<std::string> cookies;
  for (const GoneJob& job : jobs) cookies.insert(job.cookie);
  return cookies;
}

// Those of `gone`. `processes` becomes what was seen of all processes.
std::vector<pid_t> find_orphans(std::span<const GoneJob> gone,
                                std::map<pid_t, ProcessEntry>& processes) {
  if (gone.empty()) return {};  // mostly: then nothing is read
  processes = all_cookies();
  add_families(processes);
  return orphans_of(processes, cookies_of(gone), ::getpid());
}

std::size_t end_orphans(std::span<const GoneJob> gone) {
  std::map<pid_t, ProcessEntry> processes;
  std::size_t ended = 0;
  for (const pid_t pid : find_orphans(gone, processes)) {
    for (const GoneJob& job : gone) {
      if (job.cookie == processes.at(pid).cookie && kill_if_still(pid, job)) ++ended;
    }
  }
  return ended;
}

// Waits for the end of those that were killed, not longer than the end of a short job would wait.
// A process that lives on keeps its job's lock: a later start looks at it again.
void forget_those_without_processes(std::span<const GoneJob> gone) {
  if (gone.empty()) return;
  const auto until = std::chrono::steady_clock::now() + kEndOfKilled;
  const std::set<std::string> cookies = cookies_of(gone);
  std::set<std::string> living;
  for (const auto& [pid, process] : all_cookies()) {
    if (!process.cookie || !cookies.contains(*process.cookie)) continue;
    if (!ends_by(pid, until)) living.insert(*process.cookie);
  }
  for (const GoneJob& job : gone) {
    if (!living.contains(job.cookie)) remove_owner_lock(job.cookie);
  }
}

// A job that is not seen here: mostly its container has ended, and nobody sees it. The file's time
// is then that of the first look, and its mode says so.
void forget_after_a_day(const GoneJob& job) {
  constexpr mode_t kLookedAt = 0400;
  struct stat facts {};
  if (::fstat(job.lock.get(), &facts) != 0) return;
  if ((facts.st_mode & 0777) != kLookedAt) {
    if (::fchmod(job.lock.get(), kLookedAt) == 0) ::futimens(job.lock.get(), nullptr);
    return;
  }
  const auto looked_at = std::chrono::system_clock::from_time_t(facts.st_mtime);
  if (std::chrono::system_clock::now() > looked_at + std::chrono::days(1))
    remove_owner_lock(job.cookie);
}

}  // namespace

std::size_t count_orphans() {
  if (!proc_is_ours()) return 0;
  std::map<pid_t, ProcessEntry> processes;
  return find_orphans(take_gone_jobs(), processes).size();
}

std::size_t end_orphans() {
  if (!proc_is_ours()) return 0;
  std::vector<GoneJob> gone = take_gone_jobs();
  if (gone.empty()) return 0;
  const std::span<const GoneJob> seen = seen_here(gone);
  for (const GoneJob& job : gone) end_cgroup(job);
  const std::size_t ended = end_orphans(seen);
  remove_files(gone);
  // The first call killed what was in them; a cgroup can be removed only when it is empty.
  for (const GoneJob& job : gone) end_cgroup(job);
  forget_those_without_processes(seen);
  for (const GoneJob& job : std::span(gone).subspan(seen.size())) forget_after_a_day(job);
  return ended;
}

}  // namespace ddprun::agent
