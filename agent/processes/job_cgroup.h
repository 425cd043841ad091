// A cgroup of the job's own. Workers are born into it. One write kills everything in it at once,
// also what forks faster than we can look. It limits no resource and enables no controller. Not
// every host lets us make one. It needs cgroup v2, and root or a cgroup that was delegated to us.
// Without it all functions do nothing, and end_descendants() must do alone. Each attempt needs a
// new cgroup. Some kernels (6.14 to 6.18 at least) kill what clone3() starts in a cgroup that was
// killed once. It does I/O. The agent makes and ends it; if the agent was killed, the guardian ends
// it.
#pragma once

#include <chrono>
#include <string>

#include "base/file_handle.h"

namespace ddprun::agent {

// The name of a cgroup's folder is this prefix, the job's cookie, '-' and a number.
inline constexpr const char* kCgroupPrefix = "ddprun-";

// How long remove() waits for killed processes to leave.
inline constexpr std::chrono::milliseconds kLeaveLimit{700};

class JobCgroup {
 public:
  // Holds no cgroup.
  JobCgroup() = default;
  // Makes the cgroup below the one of this process. Holds none if that fails. `number`: a job's
  // cgroups have different ones.
  static JobCgroup make(const std::string& job_cookie, int number);

  // A descriptor of its folder, for clone3(2). Do not close it. -1: there is none.
  int folder() const { return folder_.get(); }
  // Sends SIGKILL to every process in it. Returns before they are gone.
  void kill() const;
  // Removes it; then this holds none. Call it when all its processes were killed: it waits up to
  // kLeaveLimit until they have left. If one stays, in uninterruptible sleep, the kernel keeps the
  // cgroup, and a later start of ddprun removes it (orphans.h).
  void remove();

 private:
  std::string path_;
  FileHandle folder_;
};

// Kills and removes all cgroups of a job by their names, for a process that did not make it. If
// killed processes are not gone yet, a folder stays: call it again later.
void end_job_cgroup(const std::string& job_cookie);
// The folder of this process's own cgroup, version 2. Empty if there is none.
std::string own_cgroup_folder();

}  // namespace ddprun::agent
