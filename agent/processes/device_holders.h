// Finds the processes that hold the files of accelerators on this host. A new worker would miss the
// memory that they have there. Reads /proc. Only root sees the files of other users' processes. Any
// thread.
#pragma once

#include <sys/types.h>

#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace ddprun::agent {

// A process with at least one such file open.
struct DeviceHolder {
  pid_t pid = 0;
  std::set<std::string> devices{};
  bool is_ours = false;  // it is of this job: below this process, or its cookie says so
  uid_t user = 0;
  std::string command{};  // its command line, cut

  bool operator==(const DeviceHolder&) const = default;
};

// Returns whether the file is one of a single accelerator: /dev/nvidia3, /dev/kfd,
// /dev/dri/renderD128. Files that all GPUs share (/dev/nvidiactl, /dev/nvidia-uvm) are none.
bool is_device_file(std::string_view path);

// Returns whether this host has such a file.
bool has_device_files();

// Returns the processes that hold one, by pid, without this one and those in `spared`. A process
// that only looks at a GPU is none. `cookie`: of this job.
std::vector<DeviceHolder> device_holders(const std::string& cookie, const std::set<pid_t>& spared);

// "pid 4711 of user ann (python train.py) holds /dev/nvidia0, /dev/nvidia1"
std::string describe(const DeviceHolder& holder);

}  // namespace ddprun::agent
