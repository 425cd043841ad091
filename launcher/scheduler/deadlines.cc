#include "launcher/scheduler/deadlines.h"

#include <algorithm>
#include <cstdint>
#include <future>
#include <string_view>

#include "base/numbers.h"

namespace ddprun::launcher {
namespace {

// Slurm's largest KillWait: it keeps 16 bits (slurm.conf(5)).
constexpr std::int64_t kMostKillWait = 65535;

// The whole number that `text` begins with, behind blanks.
std::optional<std::int64_t> number_behind_blanks(std::string_view text) {
  text.remove_prefix(std::min(text.find_first_not_of(" \t="), text.size()));
  const auto number = leading_number<std::int64_t>(text);
  return number && *number >= 0 ? number : std::nullopt;
}

// `KillWait                = 30 sec`, one line of `scontrol show config`.
std::optional<std::chrono::seconds> kill_wait_in(std::string_view config) {
  constexpr std::string_view kName = "\nKillWait ";
  const auto at = config.find(kName);
  if (at == std::string_view::npos) return std::nullopt;
  const auto number = number_behind_blanks(config.substr(at + kName.size()));
  if (!number || *number > kMostKillWait) return std::nullopt;
  return std::chrono::seconds(*number);
}

// Reads the end of this job from a line `JOB END`.
std::optional<std::int64_t> end_of(std::string_view job, std::string_view lines) {
  while (!lines.empty()) {
    const auto end = std::min(lines.find('\n'), lines.size());
    const std::string_view line = lines.substr(0, end);
    if (line.starts_with(job) && line.substr(job.size()).starts_with(' '))
      return number_behind_blanks(line.substr(job.size()));
    lines.remove_prefix(std::min(end + 1, lines.size()));
  }
  return std::nullopt;
}

}  // namespace

std::optional<std::chrono::seconds> grace_under(const SchedulerFacts& scheduler_facts,
                                                const Ask& ask) {
  std::optional<std::chrono::seconds> wait;
  if (!scheduler_facts.slurm_job.empty()) {
    const auto config = ask({"scontrol", "show", "config"});
    wait = config ? kill_wait_in(*config).value_or(kSlurmKillWait) : kSlurmKillWait;
  } else if (scheduler_facts.in_pod) {
    wait = kPodKillWait;
  }
  if (!wait) return std::nullopt;
  return std::max(*wait - kReportTime, std::chrono::seconds(0));
}

std::optional<std::chrono::sys_seconds> end_of_job(const SchedulerFacts& scheduler_facts,
                                                   const Ask& ask) {
  if (scheduler_facts.ends_at || scheduler_facts.slurm_job.empty()) return scheduler_facts.ends_at;
  // It is in seconds after 1970. Local time is ambiguous when clocks are set back. A job without an
  // end has a word there. The number of the last task of an array is also that of the whole array.
  // So each line has the number of its own job.
  const auto shown = ask({"env", "SLURM_TIME_FORMAT=%s", "squeue", "--noheader", "--format=%A %e",
                          "--jobs=" + scheduler_facts.slurm_job});
  const auto end = shown ? end_of(scheduler_facts.slurm_job, *shown) : std::nullopt;
  if (!end || *end == 0) return std::nullopt;
  return std::chrono::sys_seconds(std::chrono::seconds(*end));
}

Deadlines ask_deadlines(const SchedulerFacts& scheduler_facts, const Ask& ask, bool wants_grace) {
  const bool asks = wants_grace && !scheduler_facts.slurm_job.empty();
  auto grace = std::async(asks ? std::launch::async : std::launch::deferred, [&] {
    return wants_grace ? grace_under(scheduler_facts, ask) : std::nullopt;
  });
  const auto ends_at = end_of_job(scheduler_facts, ask);
  return {grace.get(), ends_at};
}

}  // namespace ddprun::launcher
