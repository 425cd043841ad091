#include "agent/processes/job_cgroup.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <sstream>
#include <utility>

namespace ddprun::agent {
namespace {

// Where cgroup v2 is mounted (proc_pid_mountinfo(5): the type follows " - "); empty if nowhere.
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

JobCgroup JobCgroup::make(const std::string& job_cookie) {
  JobCgroup cgroup;
  const std::string parent = own_cgroup_folder();
  if (parent.empty()) return cgroup;
  constexpr mode_t kMode = 0755;
  const std::string path = parent + "/" + kCgroupPrefix + job_cookie;
  // It also fails if the last attempt's cgroup is still there, held by a process that nobody can
  // end. We must not use that one: it was killed (job_cgroup.h).
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
  if (!path_.empty()) ::rmdir(std::exchange(path_, {}).c_str());
}

void end_job_cgroup(const std::string& job_cookie) {
  const std::string parent = own_cgroup_folder();
  if (parent.empty()) return;
  const std::string path = parent + "/" + kCgroupPrefix + job_cookie;
  write_one(path + "/cgroup.kill");
  ::rmdir(path.c_str());
}

}  // namespace ddprun::agent
