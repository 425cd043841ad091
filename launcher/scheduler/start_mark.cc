#include "launcher/scheduler/start_mark.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <optional>

#include "proto/scheduler_variables.h"

namespace ddprun::launcher {
namespace {

constexpr char kSeparator = ';';

// The part of a mark that belongs to the row number `index` of the table.
std::optional<std::string_view> part_of(std::string_view mark, std::size_t index) {
  if (mark.empty()) return "";
  for (; index > 0; --index) {
    const auto end = mark.find(kSeparator);
    if (end == std::string_view::npos) return std::nullopt;
    mark.remove_prefix(end + 1);
  }
  return mark.substr(0, mark.find(kSeparator));
}

std::string text_of_file(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

// The fourth field of /proc/PID/stat; the second may hold blanks (proc(5)).
pid_t parent_of(pid_t pid) {
  const std::string stat = text_of_file(fmt::format("/proc/{}/stat", pid));
  const auto name_end = stat.rfind(") ");
  if (name_end == std::string::npos || stat.size() < name_end + 5) return 0;
  return std::atoi(stat.c_str() + name_end + 4);
}

}  // namespace

std::string start_mark(const EnvLookup& env) {
  std::string mark;
  bool is_said = false;
  for (const SchedulerRow& row : scheduler_table()) {
    for (const std::string_view name : {row.job, row.step}) {
      if (name.empty()) continue;
      std::string text = env(name).value_or("");
      std::replace(text.begin(), text.end(), kSeparator, '_');
      is_said = is_said || !text.empty();
      mark += text + '.';
    }
    // A batch script may have the step of the process that submitted it; its pid is another one.
    if (row.scheduler == Scheduler::kSlurmStep)
      mark += env(scheduler_variables::kSlurmTaskPid).value_or("");
    mark += kSeparator;
  }
  return is_said ? mark : std::string();
}

bool is_started_anew(std::string_view then, std::string_view now, Scheduler scheduler) {
  const SchedulerRow& row = row_of(scheduler);
  if (row.job.empty()) return false;
  const auto index = static_cast<std::size_t>(&row - scheduler_table().data());
  const auto before = part_of(then, index);
  const auto here = part_of(now, index);
  return before && here && *before != *here;
}

std::string slurm_step_above() {
  constexpr std::string_view kTitle = "slurmstepd: [";
  for (pid_t pid = ::getppid(); pid > 1; pid = parent_of(pid)) {
    const std::string title = text_of_file(fmt::format("/proc/{}/cmdline", pid));
    if (!title.starts_with(kTitle)) continue;
    return title.substr(kTitle.size(), title.find(']') - kTitle.size());
  }
  return {};
}

bool is_typed_at_terminal() {
  const int terminal = ::open("/dev/tty", O_RDONLY | O_NOCTTY | O_CLOEXEC);
  if (terminal < 0) return false;
  ::close(terminal);
  return ::getpgrp() != ::getsid(0);
}

}  // namespace ddprun::launcher
