#include "agent/processes/descendants.h"

#include <dirent.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <memory>
#include <set>
#include <sstream>

#include "agent/processes/child_deaths.h"
#include "agent/processes/process.h"
#include "base/new_calls.h"
#include "base/process_end.h"
#include "base/shown_text.h"

namespace ddprun::agent {
namespace {

using Clock = std::chrono::steady_clock;

// Without pidfds nothing tells which child a death belongs to. A look so often costs little.
constexpr std::chrono::milliseconds kLookAgain{100};

std::vector<std::string> entries(const std::string& folder) {
  std::vector<std::string> names;
  const std::unique_ptr<DIR, int (*)(DIR*)> dir(::opendir(folder.c_str()), ::closedir);
  if (!dir) return names;  // the process is gone, so it has no children either
  // readdir() is safe on a DIR that no other thread uses (readdir(3), which deprecates readdir_r).
  while (const dirent* entry = ::readdir(dir.get())) {  // NOLINT(concurrency-mt-unsafe)
    if (entry->d_name[0] != '.') names.emplace_back(entry->d_name);
  }
  return names;
}

// Each thread has a list of its own. It has the children that it forked, and orphans that the
// kernel gave to this thread of the subreaper.
std::vector<pid_t> children_of(pid_t parent) {
  std::vector<pid_t> children;
  const std::string tasks = "/proc/" + std::to_string(parent) + "/task/";
  for (const std::string& thread : entries(tasks)) {
    std::istringstream list(read_proc_file(parent, "task/" + thread + "/children"));
    for (pid_t child = 0; list >> child;) children.push_back(child);
  }
  return children;
}

// Takes no exit status: WNOWAIT leaves a dead child as it is.
bool has_children() {
  siginfo_t info{};
  return ::waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) == 0 || errno != ECHILD;
}

// Reaps every dead child that is not spared: of those, somebody else wants to know the end. The
// kernel may give a pid out again, so it leaves `signalled`. The next process with such a pid
// counts as new.
void reap_dead(std::set<pid_t>& signalled, const std::set<pid_t>& spared) {
  if (spared.empty()) {
    for (pid_t dead = 0; (dead = ::waitpid(-1, nullptr, WNOHANG)) > 0;) signalled.erase(dead);
    return;
  }
  for (const pid_t child : children_of(::getpid())) {
    if (!spared.contains(child) && ::waitpid(child, nullptr, WNOHANG) > 0) signalled.erase(child);
  }
}

// Waits until a child is dead or the deadline has come. Children are enough: when one dies, the
// kernel gives us its children.
void wait_for_a_death(Clock::time_point deadline, const std::set<pid_t>& spared = {}) {
  if (!has_call(NewCall::kPidfdOpen))
    return wait_for_child_death(std::min(deadline, Clock::now() + kLookAgain));
  std::vector<FileHandle> children;
  std::vector<pollfd> fds;
  for (const pid_t child : children_of(::getpid())) {
    if (spared.contains(child)) continue;
    children.push_back(open_pidfd(child));
    if (children.back().get() >= 0) fds.push_back({children.back().get(), POLLIN, 0});
  }
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
  if (!fds.empty() && left > 0) ::poll(fds.data(), fds.size(), static_cast<int>(left));
}

std::vector<Stuck> name_all(const std::vector<pid_t>& pids) {
  std::vector<Stuck> stuck;
  stuck.reserve(pids.size());
  for (const pid_t pid : pids) {
    stuck.push_back({pid, process_name(pid), wait_channel(pid)});
  }
  return stuck;
}

bool lives(pid_t pid) {
  const auto stat = read_process_stat(pid);
  return stat && !stat->is_dead();
}

// Waits until no descendant lives, or until `deadline`. Returns those that live.
std::vector<pid_t> wait_for_all(Clock::time_point deadline, const std::set<pid_t>& spared) {
  while (true) {
    std::set<pid_t> reaped;
    reap_dead(reaped, spared);
    std::vector<pid_t> left = descendants(::getpid(), spared);
    std::erase_if(left, [](pid_t pid) { return !lives(pid); });
    if (left.empty() || Clock::now() >= deadline) return left;
    wait_for_a_death(deadline, spared);
  }
}

// The command line as a person would type it, without control characters, cut; or comm.
std::string shown_command(pid_t pid) {
  constexpr std::size_t kMost = 80;
  std::string text = read_proc_file(pid, "cmdline");
  while (!text.empty() && text.back() == '\0') text.pop_back();
  if (text.empty()) text = process_name(pid);
  if (text.size() > kMost) text = text.substr(0, kMost) + "...";
  std::replace_if(
      text.begin(), text.end(), [](char c) { return c < ' ' || c > '~'; }, ' ');
  return text;
}

}  // namespace

std::vector<LeftBehind> ask_descendants(std::chrono::milliseconds grace,
                                        const std::set<pid_t>& spared) {
  if (!has_children()) return {};
  std::vector<LeftBehind> asked;
  for (const pid_t pid : wait_for_all(Clock::now() + kEndsAlone, spared)) {
    asked.push_back({.pid = pid, .name = shown_command(pid)});
    ::kill(pid, SIGTERM);
    ::kill(pid, SIGCONT);
  }
  if (asked.empty()) return asked;
  const std::vector<pid_t> left = wait_for_all(Clock::now() + grace, spared);
  for (LeftBehind& one : asked)
    one.ended = std::find(left.begin(), left.end(), one.pid) == left.end();
  return asked;
}

std::string describe(const std::vector<LeftBehind>& left) {
  constexpr std::size_t kNamed = 3;
  std::string names;
  for (std::size_t i = 0; i < std::min(left.size(), kNamed); ++i)
    names += fmt::format("{}{} ({})", i == 0 ? "" : ", ", left[i].pid, left[i].name);
  if (left.size() > kNamed) names += fmt::format(" and {} more", left.size() - kNamed);
  const auto killed =
      std::count_if(left.begin(), left.end(), [](const LeftBehind& one) { return !one.ended; });
  return fmt::format("workers left {} behind: {}; SIGTERM was sent{}",
                     left.size() == 1 ? "a process" : fmt::format("{} processes", left.size()),
                     names,
                     killed == 0 ? "" : fmt::format(", and SIGKILL to {} that went on", killed));
}

std::set<pid_t> own_children() {
  const std::vector<pid_t> children = children_of(::getpid());
  return {children.begin(), children.end()};
}

std::vector<pid_t> descendants(pid_t root, const std::set<pid_t>& spared) {
  std::vector<pid_t> found = children_of(root);
  std::erase_if(found, [&spared](pid_t pid) { return spared.contains(pid); });
  for (std::size_t next = 0; next < found.size(); ++next) {
    for (const pid_t child : children_of(found[next])) {
      // If a parent dies while we read, its child moves up and may be met twice.
      if (std::find(found.begin(), found.end(), child) == found.end()) found.push_back(child);
    }
  }
  return found;
}

std::string describe(const Stuck& stuck) {
  return fmt::format(
      "process {} ({}) does not end after SIGKILL; it waits in the kernel in {}; left", stuck.pid,
      shown_text(stuck.name), shown_text(stuck.wait_channel));
}

std::vector<Stuck> end_descendants(std::chrono::milliseconds limit, const std::set<pid_t>& spared) {
  const Clock::time_point deadline = Clock::now() + limit;
  std::set<pid_t> signalled;
  // waitid() is certain about children, /proc is not. But waitid() counts spared children too.
  const auto anything_left = [&spared] {
    return spared.empty() ? has_children() : !descendants(::getpid(), spared).empty();
  };
  while (anything_left()) {
    // If a parent dies while we read, its child becomes ours. It may be in none of the lists that
    // we read. So we look again until we find nothing new, and only then wait.
    bool found_new = false;
    for (const pid_t pid : descendants(::getpid(), spared)) {
      found_new = signalled.insert(pid).second || found_new;
      ::kill(pid, SIGKILL);
    }
    reap_dead(signalled, spared);
    if (Clock::now() >= deadline) return name_all(descendants(::getpid(), spared));
    if (found_new || !anything_left()) continue;
    wait_for_a_death(deadline);
    reap_dead(signalled, spared);
  }
  return {};
}

std::size_t kill_descendants(pid_t root, std::chrono::milliseconds limit) {
  const Clock::time_point deadline = Clock::now() + limit;
  std::set<pid_t> killed;
  while (true) {
    std::vector<pid_t> left = descendants(root);
    std::erase_if(left, [](pid_t pid) { return !lives(pid); });
    for (const pid_t pid : left) ::kill(pid, SIGKILL);
    killed.insert(left.begin(), left.end());
    if (left.empty() || Clock::now() >= deadline) return killed.size();
    ends_by(left.front(), deadline);
  }
}

}  // namespace ddprun::agent
