// A cgroup of the job's own, where the host lets us make one (cgroup v2, delegated to us or root):
// workers are born into it, and one write ends everything in it at once, however fast it forks. It
// limits nothing and enables no controller. Without one all functions do nothing; the other layers
// remain. One for each attempt: some kernels (6.14 to 6.18 at least) kill whatever is born by
// clone3 into a cgroup that was ever killed. Shell; made by the agent, ended by it or, when it was
// killed, by the guardian.
#pragma once

#include <string>

#include "proto/file_handle.h"

namespace ddprun::agent {

// The folder names of our cgroups: this and the job's cookie.
inline constexpr const char* kCgroupPrefix = "ddprun-";

class JobCgroup {
 public:
  // None.
  JobCgroup() = default;
  // Below this process's own cgroup.
  static JobCgroup make(const std::string& job_cookie);

  // Of its folder, for clone3(2); -1: there is none.
  int folder() const { return folder_.get(); }
  // SIGKILL to every process in it.
  void kill() const;
  // Removes it. All that was in it must have been killed: waits up to a second until they have left.
  // A process in uninterruptible sleep stays and keeps it; a later start of ddprun removes it.
  void remove();

 private:
  std::string path_;
  FileHandle folder_;
};

// The same from outside, by name: for who did not make it.
void end_job_cgroup(const std::string& job_cookie);
// The folder of this process's own version-2 cgroup; empty where there is none.
std::string own_cgroup_folder();

}  // namespace ddprun::agent
