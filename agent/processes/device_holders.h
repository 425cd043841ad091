// Finds the processes that hold the files of accelerators on this host. A new worker would miss the
// memory that they have there. Reads /proc, which must be ours (process.h). Only root sees the
// files of other users' processes. Any thread.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace ddprun::agent {

// The devices by their paths, each with the kernel's number for it. In a container, a path may be
// that of another device.
using Devices = std::map<std::string, std::uint64_t>;

// A process with at least one such file open.
struct DeviceHolder {
  pid_t pid = 0;
  Devices devices{};
  bool is_ours = false;  // it is below this process
  uid_t user = 0;
  std::string command{};      // its command line, cut
  std::uint64_t started = 0;  // ProcessStat::started: another process with its pid is none

  bool operator==(const DeviceHolder&) const = default;
};

// Returns whether the file is one of a single accelerator: /dev/nvidia3,
// /dev/dri/renderD128. Files that all GPUs share (/dev/nvidiactl, /dev/nvidia-uvm, /dev/kfd) are
// none.
bool is_device_file(std::string_view path);

// Returns whether this host has such a file.
bool has_device_files();

// Returns the processes that hold one, by pid. Left out are this one, and those in `spared` with
// all below them. A process that only looks at a GPU is none. Looks at every process of the host.
std::vector<DeviceHolder> device_holders(const std::set<pid_t>& spared);

// Returns whether it is still that process, and still holds one of these devices.
bool still_holds(const DeviceHolder& holder);

// Returns the devices that processes below this one hold. Looks at no others.
Devices devices_below();

// Sends SIGKILL, if the pid is still that process. Returns whether it did.
bool kill_holder(const DeviceHolder& holder);

// "pid 4711 of user ann (python train.py) holds /dev/nvidia0, /dev/nvidia1"
std::string describe(const DeviceHolder& holder);

}  // namespace ddprun::agent
