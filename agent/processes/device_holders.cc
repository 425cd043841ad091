#include "agent/processes/device_holders.h"

#include <fmt/format.h>
#include <pwd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <climits>
#include <utility>

#include "agent/processes/descendants.h"
#include "agent/processes/folder_names.h"
#include "agent/processes/process.h"
#include "base/numbers.h"
#include "base/process_end.h"
#include "base/shown_text.h"

namespace ddprun::agent {
namespace {

constexpr std::size_t kMostCommand = 80;
constexpr const char* kNvidia = "/dev/nvidia";
// CUDA opens it. A monitor (nvidia-smi, nvtop, DCGM) does not: it has no memory on the device.
constexpr const char* kUnifiedMemory = "/dev/nvidia-uvm";

std::string target_of(const std::string& link) {
  std::array<char, PATH_MAX> path{};
  const ssize_t size = ::readlink(link.c_str(), path.data(), path.size());
  return size > 0 ? std::string(path.data(), static_cast<std::size_t>(size)) : std::string();
}

// Follows the link of an open file; 0 if it was closed. A test's stand-in for a device has no
// number but its inode's.
std::uint64_t number_of(const std::string& link) {
  struct stat facts {};
  if (::stat(link.c_str(), &facts) != 0) return 0;
  return S_ISCHR(facts.st_mode) ? facts.st_rdev : facts.st_dev << 32U ^ facts.st_ino;
}

Devices devices_of(pid_t pid) {
  Devices devices;
  bool computes = false;
  const std::string folder = fmt::format("/proc/{}/fd", pid);
  for (const std::string& name : names_in(folder)) {
    const std::string link = fmt::format("{}/{}", folder, name);
    const std::string path = target_of(link);
    computes = computes || path == kUnifiedMemory;
    if (!is_device_file(path)) continue;
    if (const std::uint64_t number = number_of(link)) devices[path] = number;
  }
  std::erase_if(devices, [computes](const auto& device) {
    return device.first.starts_with(kNvidia) && !computes;
  });
  return devices;
}

std::vector<std::string_view> paths_of(const Devices& devices) {
  std::vector<std::string_view> paths;
  for (const auto& [path, number] : devices) paths.push_back(path);
  return paths;
}

uid_t user_of(pid_t pid) {
  struct stat facts {};
  return ::stat(fmt::format("/proc/{}", pid).c_str(), &facts) == 0 ? facts.st_uid : 0;
}

std::string command_of(pid_t pid) {
  std::string line = read_proc_file(pid, "cmdline");
  while (!line.empty() && line.back() == '\0') line.pop_back();
  std::ranges::replace(line, '\0', ' ');
  if (line.empty()) line = process_name(pid);
  return shown_text(line.substr(0, kMostCommand));
}

std::set<pid_t> as_set(const std::vector<pid_t>& pids) { return {pids.begin(), pids.end()}; }

bool is_same(const DeviceHolder& holder) {
  const auto stat = read_process_stat(holder.pid);
  return stat && stat->started == holder.started;
}

bool is_number(std::string_view text, std::string_view prefix) {
  return text.starts_with(prefix) && parse_whole<unsigned>(text.substr(prefix.size())).has_value();
}

}  // namespace

bool is_device_file(std::string_view path) {
  return is_number(path, kNvidia) || is_number(path, "/dev/dri/renderD");
}

bool has_device_files() {
  for (const std::string folder : {"/dev", "/dev/dri"})
    for (const std::string& name : names_in(folder))
      if (is_device_file(fmt::format("{}/{}", folder, name))) return true;
  return false;
}

std::vector<DeviceHolder> device_holders(const std::set<pid_t>& spared) {
  const std::vector<pid_t> below = descendants(::getpid(), spared);
  std::set<pid_t> left_out = spared;
  left_out.insert(::getpid());
  for (const pid_t root : spared) left_out.merge(as_set(descendants(root)));
  std::vector<DeviceHolder> holders;
  for (const std::string& name : names_in("/proc")) {
    const auto pid = parse_whole<pid_t>(name);
    if (!pid || left_out.contains(*pid)) continue;
    // Read first: if the pid changes hands meanwhile, no process matches the two.
    const auto stat = read_process_stat(*pid);
    DeviceHolder holder{.pid = *pid, .devices = devices_of(*pid)};
    if (!stat || holder.devices.empty()) continue;
    holder.started = stat->started;
    holder.is_ours = std::ranges::find(below, *pid) != below.end();
    holder.user = user_of(*pid);
    holder.command = command_of(*pid);
    holders.push_back(std::move(holder));
  }
  std::ranges::sort(holders, {}, &DeviceHolder::pid);
  return holders;
}

bool still_holds(const DeviceHolder& holder) {
  const Devices devices = devices_of(holder.pid);
  return is_same(holder) && std::ranges::any_of(devices, [&holder](const auto& device) {
           return holder.devices.contains(device.first);
         });
}

Devices devices_below() {
  Devices devices;
  for (const pid_t pid : descendants(::getpid())) devices.merge(devices_of(pid));
  return devices;
}

bool kill_holder(const DeviceHolder& holder) {
  const FileHandle process = open_pidfd(holder.pid);
  return is_same(holder) && kill_process(process, holder.pid);
}

std::string describe(const DeviceHolder& holder) {
  std::array<char, 4096> room{};
  passwd facts{};
  passwd* found = nullptr;
  ::getpwuid_r(holder.user, &facts, room.data(), room.size(), &found);
  return fmt::format("pid {} of user {} ({}) holds {}", holder.pid,
                     found != nullptr ? found->pw_name : std::to_string(holder.user),
                     holder.command, fmt::join(paths_of(holder.devices), ", "));
}

}  // namespace ddprun::agent
