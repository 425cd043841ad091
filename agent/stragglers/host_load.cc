#include "agent/stragglers/host_load.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <string>

#include "base/duration.h"
#include "base/numbers.h"
#include "base/regular_file.h"

namespace ddprun::agent {
namespace {

constexpr std::size_t kMostBytes = 4096;
constexpr double kThousand = 1000;

// The number behind `name`; 0: there is none.
std::int64_t number_behind(std::string_view text, std::string_view name) {
  const std::size_t found = text.find(name);
  if (found == std::string_view::npos) return 0;
  return leading_number<std::int64_t>(text.substr(found + name.size())).value_or(0);
}

int thousandths(double part, double whole) {
  if (whole <= 0) return 0;
  return static_cast<int>(std::clamp(part / whole * kThousand, 0.0, kThousand));
}

std::int64_t number_in(const std::filesystem::path& path) {
  return number_behind(read_file_start(path.string(), kMostBytes), "");
}

// That of the first CPU: they mostly run alike. It is a part of the one that all can have at once,
// which not every kernel tells.
int frequency(const std::filesystem::path& root) {
  const std::filesystem::path folder = root / "sys/devices/system/cpu/cpu0/cpufreq";
  return thousandths(static_cast<double>(number_in(folder / "scaling_cur_freq")),
                     static_cast<double>(number_in(folder / "base_frequency")));
}

// The path of our cgroup in a line of /proc/self/cgroup: "4:cpu,cpuacct:/a", "0::/a".
std::string_view path_behind(std::string_view text, std::string_view names) {
  const std::size_t found = text.find(names);
  if (found == std::string_view::npos) return {};
  text.remove_prefix(found + names.size());
  return text.substr(0, text.find('\n'));
}

std::string cpu_stat(const std::filesystem::path& root) {
  const std::string own = read_file_start((root / "proc/self/cgroup").string(), kMostBytes);
  const std::filesystem::path groups = root / "sys/fs/cgroup";
  const auto read = [](const std::filesystem::path& tree, std::string_view path) {
    while (path.starts_with('/')) path.remove_prefix(1);
    return read_file_start((tree / path / "cpu.stat").string(), kMostBytes);
  };
  for (const char* const names : {":cpu,cpuacct:", ":cpu:"})
    if (const auto path = path_behind(own, names); !path.empty()) return read(groups / "cpu", path);
  return read(groups, path_behind(own, "0::"));
}

}  // namespace

CpuTicks parse_cpu_ticks(std::string_view stat) {
  constexpr int kIdle = 3;  // user, nice, system, idle, iowait, irq, softirq, steal
  constexpr int kWaitsForDisk = 4;
  constexpr int kStolen = 7;
  CpuTicks ticks;
  if (!stat.starts_with("cpu ")) return ticks;
  stat = stat.substr(0, stat.find('\n'));
  for (int field = 0; field <= kStolen; ++field) {
    const std::size_t next = stat.find_first_of("0123456789");
    if (next == std::string_view::npos) break;
    stat.remove_prefix(next);
    const std::int64_t number = leading_number<std::int64_t>(stat).value_or(0);
    ticks.all += number;
    if (field == kIdle || field == kWaitsForDisk) ticks.idle += number;
    if (field == kStolen) ticks.stolen = number;
    stat.remove_prefix(std::min(stat.find(' '), stat.size()));
  }
  return ticks;
}

QuotaPeriods parse_quota_periods(std::string_view cpu_stat) {
  return {.all = number_behind(cpu_stat, "nr_periods "),
          .throttled = number_behind(cpu_stat, "nr_throttled ")};
}

rendezvous::HostSample host_between(const HostLook& first, const HostLook& second) {
  static const auto ticks_a_second = static_cast<double>(::sysconf(_SC_CLK_TCK));
  const auto all = static_cast<double>(second.ticks.all - first.ticks.all);
  const auto idle = static_cast<double>(second.ticks.idle - first.ticks.idle);
  const auto stolen = static_cast<double>(second.ticks.stolen - first.ticks.stolen);
  const double workers = in_seconds(second.workers - first.workers) * ticks_a_second;
  return {.stolen = thousandths(stolen, all),
          .throttled =
              thousandths(static_cast<double>(second.periods.throttled - first.periods.throttled),
                          static_cast<double>(second.periods.all - first.periods.all)),
          .others = thousandths(all - idle - stolen - workers, all),
          .frequency = second.frequency};
}

HostLook look_at_host(std::chrono::milliseconds workers, Time now,
                      const std::filesystem::path& root) {
  return {.when = now,
          .ticks = parse_cpu_ticks(read_file_start((root / "proc/stat").string(), kMostBytes)),
          .periods = parse_quota_periods(cpu_stat(root)),
          .workers = workers,
          .frequency = frequency(root)};
}

}  // namespace ddprun::agent
