#include "agent/report.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <ctime>

namespace ddprun::agent {
namespace {

constexpr std::size_t kRuleWidth = 60;  // torchrun's upper limit

std::string local_time(std::chrono::system_clock::time_point when) {
  const std::time_t seconds = std::chrono::system_clock::to_time_t(when);
  std::tm broken_down{};
  ::localtime_r(&seconds, &broken_down);
  return fmt::format("{:%Y-%m-%d_%H:%M:%S}", broken_down);
}

std::string exit_text(const WorkerExit& exit) {
  if (exit.exit_code < 0)
    return fmt::format("{} (pid: {}) ({})", exit.exit_code, exit.pid, signal_name(-exit.exit_code));
  return fmt::format("{} (pid: {})", exit.exit_code, exit.pid);
}

std::string reason_text(const WorkerExit& exit) {
  if (exit.exec_errno != 0)
    return fmt::format("the program could not be started: {}", ::strerrordesc_np(exit.exec_errno));
  if (exit.exit_code < 0)
    return fmt::format("Signal {} ({}) received by PID {}", -exit.exit_code,
                       signal_name(-exit.exit_code), exit.pid);
  return "To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html";
}

std::string entry_text(const ReportFacts& facts, const ReportedWorker& worker, std::size_t index) {
  const WorkerExit& exit = worker.worker.exit;
  const std::chrono::duration<double> ran = worker.worker.ended - worker.worker.started;
  return fmt::format(
      "[{}]:\n"
      "  time      : {}\n"
      "  host      : {}\n"
      "  rank      : {} (local_rank: {})\n"
      "  exitcode  : {}\n"
      "  run time  : {:.3f} s\n"
      "  error_file: {}\n"
      "  traceback : {}\n",
      index, local_time(worker.when), facts.hostname, worker.rank, exit.local_rank, exit_text(exit),
      ran.count(), worker.error_file.empty() ? "<N/A>" : worker.error_file, reason_text(exit));
}

std::string stopped_text(const std::vector<ReportedWorker>& workers) {
  std::string line;
  for (const ReportedWorker& worker : workers) {
    if (!worker.worker.stopped_by_us) continue;
    line += fmt::format("{}rank {} (exitcode {})",
                        line.empty() ? "Stopped by ddprun after that: " : ", ", worker.rank,
                        worker.worker.exit.exit_code);
  }
  return line.empty() ? line : line + "\n";
}

}  // namespace

std::string failure_report(const ReportFacts& facts) {
  const auto by_itself = [](const ReportedWorker& worker) { return !worker.worker.stopped_by_us; };
  const auto first = std::find_if(facts.workers.begin(), facts.workers.end(), by_itself);
  if (first == facts.workers.end()) return {};
  const std::string title = facts.entry + " FAILED";
  const std::string attempts =
      fmt::format("attempt {} of {}", facts.attempt + 1, facts.max_restarts + 1);
  const std::string thick = std::string(kRuleWidth, '=') + "\n";
  const std::string thin = std::string(kRuleWidth, '-') + "\n";
  std::string others;
  std::size_t index = 1;
  for (auto worker = std::next(first); worker != facts.workers.end(); ++worker) {
    if (by_itself(*worker)) others += entry_text(facts, *worker, index++);
  }
  if (others.empty()) others = "  <NO_OTHER_FAILURES>\n";
  return thick + title + " (" + attempts + ")\n" + thin + "Failures:\n" + others + thin +
         "Root Cause (first observed failure):\n" + entry_text(facts, *first, 0) +
         stopped_text(facts.workers) + thick;
}

std::string ending_line(const Ending& ending) {
  if (ending.signal != 0)
    return fmt::format("ddprun: received {}; the workers were stopped\n",
                       signal_name(ending.signal));
  if (ending.link_error) return fmt::format("ddprun: {}\n", ending.link_error->message());
  if (ending.cause) return fmt::format("ddprun: the job failed: {}\n", ending.cause->message);
  return {};
}

}  // namespace ddprun::agent
