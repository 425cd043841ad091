#include "launcher/scheduler/cpu_quota.h"

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <string>
#include <string_view>

namespace ddprun::launcher {
namespace {

namespace fs = std::filesystem;

// Processors, with fractions. Nothing if there is no such file, or no limit.
std::optional<double> quota_v2(const fs::path& folder) {
  std::ifstream file(folder / "cpu.max");
  std::string quota;
  double period = 0;
  if (!(file >> quota >> period) || quota == "max" || period <= 0) return std::nullopt;
  return std::strtod(quota.c_str(), nullptr) / period;
}

// -1 is no limit.
std::optional<double> quota_v1(const fs::path& folder) {
  double quota = 0;
  double period = 0;
  if (!(std::ifstream(folder / "cpu.cfs_quota_us") >> quota) || quota <= 0) return std::nullopt;
  if (!(std::ifstream(folder / "cpu.cfs_period_us") >> period) || period <= 0) return std::nullopt;
  return quota / period;
}

// The smallest quota from the cgroup up to the uppermost one, which in a container has the limit.
// There the path of the cgroup may not exist.
template <typename Quota>
std::optional<double> smallest(const fs::path& mount, std::string_view cgroup, Quota quota_of) {
  std::optional<double> least;
  fs::path below(cgroup.substr(std::min(cgroup.find_first_not_of('/'), cgroup.size())));
  while (true) {
    const auto quota = quota_of(mount / below);
    if (quota && (!least || *quota < *least)) least = quota;
    if (below.empty()) return least;
    below = below.parent_path();
  }
}

bool has_cpu(std::string_view controllers) {
  while (!controllers.empty()) {
    const auto comma = std::min(controllers.find(','), controllers.size());
    if (controllers.substr(0, comma) == "cpu") return true;
    controllers.remove_prefix(std::min(comma + 1, controllers.size()));
  }
  return false;
}

// One line of /proc/self/cgroup (cgroups(7)): "4:cpu,cpuacct:/a/b", or "0::/a/b" of version 2.
struct CgroupLine {
  std::string controllers;
  std::string cgroup;
};

std::optional<CgroupLine> parse_line(const std::string& line) {
  const auto first = line.find(':');
  const auto second = line.find(':', first + 1);
  if (first == std::string::npos || second == std::string::npos) return std::nullopt;
  return CgroupLine{line.substr(first + 1, second - first - 1), line.substr(second + 1)};
}

}  // namespace

std::optional<int> cpu_quota(const fs::path& root) {
  std::optional<double> least;
  const auto consider = [&least](std::optional<double> quota) {
    if (quota && (!least || *quota < *least)) least = quota;
  };
  const fs::path mount = root / "sys/fs/cgroup";
  std::ifstream file(root / "proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    const auto found = parse_line(line);
    if (!found) continue;
    if (found->controllers.empty()) consider(smallest(mount, found->cgroup, quota_v2));
    if (!has_cpu(found->controllers)) continue;
    // systemd mounts the controller in one of these places.
    for (const char* place : {"cpu", "cpu,cpuacct"})
      consider(smallest(mount / place, found->cgroup, quota_v1));
  }
  if (!least) return std::nullopt;
  // A part of a processor is not one more worker's.
  return std::max(1, static_cast<int>(std::min(*least, 1e6)));
}

}  // namespace ddprun::launcher
