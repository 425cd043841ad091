#include "agent/processes/job_cgroup.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <fstream>
#include <sstream>
#include <string_view>
#include <utility>

#include "agent/processes/folder_names.h"

namespace ddprun::agent {
namespace {

// The folder at which cgroup v2 is mounted; empty if nowhere. In proc_pid_mountinfo(5) the type
// follows " - ".
std::string mount_point() {
  std::ifstream file("/proc/self/mountinfo");
  for (std::string line; std::getline(file, line);) {
    if (line.find(" - cgroup2 ") == std::string::npos) continue;
    std::istringstream fields(line);
    std::string id, parent, device, root, target;
    fields >> id >> parent >> device >> root >> target;
    // Otherwise only a part of the tree is mounted, and the paths of /proc/self/cgroup do not fit.
    return root == "/" ? target : std::string();
  }
  return {};
}

void write_one(const std::string& path) {
  const FileHandle file(::open(path.c_str(), O_WRONLY | O_CLOEXEC));
  if (file.get() >= 0) [[maybe_unused]]
    const auto written = ::write(file.get(), "1", 1);
}

// Waits until nobody is in the cgroup, or for kLeaveLimit. A killed process leaves its cgroup some
// time after it closed its files and died for its parent. The kernel announces a change of
// cgroup.events by POLLPRI (its manual cgroup-v2, "Populated Notification").
void wait_until_empty(const std::string& path) {
  using std::chrono::steady_clock;
  const FileHandle events(::open((path + "/cgroup.events").c_str(), O_RDONLY | O_CLOEXEC));
  if (events.get() < 0) return;
  for (const auto end = steady_clock::now() + kLeaveLimit; steady_clock::now() < end;) {
    std::array<char, 128> text{};
    const ssize_t got = ::pread(events.get(), text.data(), text.size(), 0);
    if (got <= 0) return;
    if (std::string_view(text.data(), static_cast<std::size_t>(got)).find("populated 0") !=
        std::string_view::npos)
      return;
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(end - steady_clock::now());
    pollfd change{.fd = events.get(), .events = POLLPRI, .revents = 0};
    ::poll(&change, 1, static_cast<int>(left.count()) + 1);
  }
}

}  // namespace

std::string own_cgroup_folder() {
  const std::string mounted = mount_point();
  if (mounted.empty()) return {};
  std::ifstream file("/proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    // Version 2 has the line with hierarchy 0 and no controllers (cgroups(7), /proc/[pid]/cgroup).
    if (line.starts_with("0::/")) return mounted + line.substr(3);
  }
  return {};
}

JobCgroup JobCgroup::make(const std::string& job_cookie, int number) {
  JobCgroup cgroup;
  const std::string parent = own_cgroup_folder();
  if (parent.empty()) return cgroup;
  constexpr mode_t kMode = 0755;
  const std::string path = fmt::format("{}/{}{}-{}", parent, kCgroupPrefix, job_cookie, number);
  if (::mkdir(path.c_str(), kMode) != 0) return cgroup;
  // cgroup.kill is there since Linux 5.14. Without it the cgroup would be of no use.
  if (::access((path + "/cgroup.kill").c_str(), W_OK) != 0) {
    ::rmdir(path.c_str());
    return cgroup;
  }
  cgroup.path_ = path;
  cgroup.folder_ = FileHandle(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  return cgroup;
}

void JobCgroup::kill() const {
  if (!path_.empty()) write_one(path_ + "/cgroup.kill");
}

void JobCgroup::remove() {
  folder_.close();
  if (path_.empty()) return;
  wait_until_empty(path_);
  ::rmdir(std::exchange(path_, {}).c_str());
}

void end_job_cgroup(const std::string& job_cookie) {
  const std::string parent = own_cgroup_folder();
  if (parent.empty()) return;
  for (const std::string& name : names_in(parent, kCgroupPrefix + job_cookie)) {
    const std::string folder = fmt::format("{}/{}", parent, name);
    write_one(folder + "/cgroup.kill");
    ::rmdir(folder.c_str());
  }
}

}  // namespace ddprun::agent
