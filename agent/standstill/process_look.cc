#include "agent/standstill/process_look.h"

#include <unistd.h>

#include <cstdint>
#include <numeric>
#include <string>
#include <string_view>
#include <vector>

#include "agent/processes/descendants.h"
#include "agent/processes/process.h"
#include "base/numbers.h"

namespace ddprun::agent {
namespace {

// Places in /proc/<pid>/stat (proc_pid_stat(5)). Each number follows for the children that have
// ended and were waited for.
constexpr int kMajorFaults = 12;
constexpr int kFirstTime = 14;  // user, system, and both of the children
constexpr int kLastTime = 17;

struct StatSums {
  std::int64_t major_faults = 0;
  std::chrono::milliseconds cpu{0};
};

StatSums stat_sums(pid_t pid) {
  static const std::int64_t ticks = ::sysconf(_SC_CLK_TCK);
  constexpr std::int64_t kMillis = 1000;
  const std::vector<std::int64_t> read = read_stat_numbers(pid, kMajorFaults, kLastTime);
  if (read.empty()) return {};
  const auto first_time = read.begin() + (kFirstTime - kMajorFaults);
  return {.major_faults = std::accumulate(read.begin(), first_time, std::int64_t{0}),
          .cpu = std::chrono::milliseconds(
              std::accumulate(first_time, read.end(), std::int64_t{0}) * kMillis / ticks)};
}

// The number behind `name` in a file of /proc.
std::uint64_t number_behind(std::string_view text, std::string_view name) {
  const std::size_t found = text.find(name);
  if (found == std::string_view::npos) return 0;
  return leading_number<std::uint64_t>(text.substr(found + name.size())).value_or(0);
}

std::uint64_t bytes_moved(pid_t pid) {
  const std::string text = read_proc_file(pid, "io");  // proc_pid_io(5)
  return number_behind(text, "rchar: ") + number_behind(text, "wchar: ");
}

std::vector<pid_t> with_all_below(pid_t worker) {
  std::vector<pid_t> all = descendants(worker);
  all.push_back(worker);
  return all;
}

}  // namespace

ProcessLook look_at_process(pid_t worker, const SocketBytes& sockets) {
  ProcessLook look;
  if (const auto stat = read_process_stat(worker)) look.state = stat->state;
  look.wait_channel = wait_channel(worker);
  // That of the main thread alone: other threads of a rank wake up by themselves.
  look.switches = static_cast<std::int64_t>(
      number_behind(read_proc_file(worker, "status"), "\nvoluntary_ctxt_switches:\t"));
  for (const pid_t pid : with_all_below(worker)) {
    const StatSums sums = stat_sums(pid);
    look.cpu += sums.cpu;
    look.major_faults += sums.major_faults;
    look.bytes += bytes_moved(pid) + bytes_of_sockets(pid, sockets);
  }
  return look;
}

std::chrono::milliseconds cpu_of(pid_t worker) {
  std::chrono::milliseconds sum{0};
  for (const pid_t pid : with_all_below(worker)) sum += stat_sums(pid).cpu;
  return sum;
}

}  // namespace ddprun::agent
