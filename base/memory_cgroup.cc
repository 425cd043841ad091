#include "base/memory_cgroup.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <string>
#include <string_view>

namespace ddprun {
namespace {

// A memory limit above this stands for "none" (cgroup v1 rounds LONG_MAX down to a page).
constexpr std::uint64_t kNoLimit = std::uint64_t{1} << 60;

// The value of `key` in a file of lines "key value".
std::optional<std::uint64_t> value_of(const std::string& path, std::string_view key) {
  std::ifstream file(path);
  std::string name;
  for (std::uint64_t value = 0; file >> name >> value; file.ignore(64, '\n')) {
    if (name == key) return value;
  }
  return std::nullopt;
}

std::optional<std::uint64_t> least(std::optional<std::uint64_t> a, std::optional<std::uint64_t> b) {
  if (!a || !b) return a ? a : b;
  return std::min(*a, *b);
}

// Returns the memory left below the limit of this one folder.
std::optional<std::uint64_t> left_in(const std::string& folder, bool v2) {
  const auto limit = read_cgroup_number(folder + (v2 ? "/memory.max" : "/memory.limit_in_bytes"));
  const auto used =
      read_cgroup_number(folder + (v2 ? "/memory.current" : "/memory.usage_in_bytes"));
  if (!limit || !used) return std::nullopt;
  std::uint64_t dropped = 0;
  for (const char* kind : {"inactive_file", "active_file"})
    dropped +=
        value_of(folder + "/memory.stat", (v2 ? "" : "total_") + std::string(kind)).value_or(0);
  const std::uint64_t needed = *used - std::min(dropped, *used);
  return *limit - std::min(needed, *limit);
}

}  // namespace

std::string own_memory_cgroup() {
  std::ifstream file("/proc/self/cgroup");
  std::string unified;
  for (std::string line; std::getline(file, line);) {
    const auto first = line.find(':');
    const auto second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    if (("," + controllers + ",").find(",memory,") != std::string::npos)
      return line.substr(second + 1);
    if (controllers.empty()) unified = line.substr(second + 1);
  }
  return unified;
}

std::optional<MemoryFolder> memory_folder(const std::string& cgroup) {
  for (const char* root : {"/sys/fs/cgroup/memory", "/sys/fs/cgroup", "/sys/fs/cgroup/unified"}) {
    const std::string path = root + (cgroup == "/" ? "" : cgroup);
    if (::access((path + "/memory.limit_in_bytes").c_str(), R_OK) == 0)
      return MemoryFolder{path, false};
    if (::access((path + "/memory.max").c_str(), R_OK) == 0) return MemoryFolder{path, true};
  }
  return std::nullopt;
}

std::optional<std::uint64_t> read_cgroup_number(const std::string& path) {
  std::ifstream file(path);
  std::uint64_t value = 0;
  if (!(file >> value) || value >= kNoLimit) return std::nullopt;
  return value;
}

std::optional<std::uint64_t> memory_left() {
  std::optional<std::uint64_t> left = value_of("/proc/meminfo", "MemAvailable:");
  if (left) *left *= 1024;
  const std::string cgroup = own_memory_cgroup();
  const auto folder = memory_folder(cgroup);
  return folder ? least(left, memory_left_in(*folder, cgroup)) : left;
}

std::optional<std::uint64_t> memory_left_in(const MemoryFolder& folder, std::string cgroup) {
  std::optional<std::uint64_t> left;
  if (cgroup == "/") cgroup.clear();
  for (std::string path = folder.path;; path.resize(path.rfind('/'))) {
    left = least(left, left_in(path, folder.v2));
    if (cgroup.empty()) return left;
    cgroup.resize(cgroup.rfind('/'));
  }
}

}  // namespace ddprun
