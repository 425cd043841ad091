#include "agent/standstill/process_look.h"

#include <unistd.h>

#include <string>
#include <string_view>
#include <vector>

#include "agent/processes/descendants.h"
#include "agent/processes/process.h"
#include "base/numbers.h"

namespace ddprun::agent {
namespace {

// Places in /proc/<pid>/stat (proc_pid_stat(5)).
constexpr int kMajorFaults = 12;
constexpr int kFaultsOfEnded = 13;
// User and system time, its own and that of children that have ended and were waited for.
constexpr int kFirstTime = 14;
constexpr int kLastTime = 17;

std::chrono::milliseconds cpu_time(pid_t pid) {
  static const std::int64_t ticks = ::sysconf(_SC_CLK_TCK);
  constexpr std::int64_t kMillis = 1000;
  std::int64_t used = 0;
  for (int place = kFirstTime; place <= kLastTime; ++place)
    used += read_stat_number(pid, place).value_or(0);
  return std::chrono::milliseconds(used * kMillis / ticks);
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

ProcessLook look_at_process(pid_t worker) {
  ProcessLook look;
  if (const auto stat = read_process_stat(worker)) look.state = stat->state;
  look.wait_channel = wait_channel(worker);
  // That of the main thread alone: other threads of a rank wake up by themselves.
  look.switches = static_cast<std::int64_t>(
      number_behind(read_proc_file(worker, "status"), "\nvoluntary_ctxt_switches:\t"));
  for (const pid_t pid : with_all_below(worker)) {
    look.cpu += cpu_time(pid);
    look.bytes += bytes_moved(pid);
    look.major_faults += read_stat_number(pid, kMajorFaults).value_or(0) +
                         read_stat_number(pid, kFaultsOfEnded).value_or(0);
  }
  return look;
}

std::chrono::milliseconds cpu_of(pid_t worker) {
  std::chrono::milliseconds sum{0};
  for (const pid_t pid : with_all_below(worker)) sum += cpu_time(pid);
  return sum;
}

}  // namespace ddprun::agent
