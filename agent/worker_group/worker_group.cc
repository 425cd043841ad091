#include "agent/worker_group/worker_group.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/duration.h"
#include "base/log.h"
#include "base/net/descriptors.h"

namespace ddprun::agent {

WorkerGroup::WorkerGroup(asio::io_context& loop, const AgentConfig& config, Consoles& consoles,
                         AtStart at_start, DyingHandler dying)
    : config_(config),
      children_(at_start.ignored_signals),
      containment_(config.job_cookie),
      standbys_(
          loop, config, children_, [this] { return containment_.standby_cgroup(); },
          std::move(dying)),
      pipes_(loop),
      files_(config, logs_, pipes_, consoles, std::move(at_start.hostname)) {
  // The agent may need many descriptors: each connection to the store costs one. Workers get the
  // user's own limit back: select() fails on descriptors above 1023.
  children_.give_workers(raise_descriptor_limit());
}

// Only a folder that the user named may end the job.
Result<void> WorkerGroup::open_logs() {
  auto logs = LogTree::make(config_.log_dir, config_.rendezvous.run_id);
  if (!logs && config_.log_dir.empty() && logs.error().code() != ErrorCode::kInvalidArgument) {
    log::warning(
        fmt::format("{}; {}workers' error records are not kept", logs.error().message(),
                    wants_files(config_) ? "their output goes to the console alone, and " : ""));
    return {};
  }
  if (!logs) return logs.error();
  if (!logs->notice().empty()) log::warning(logs->notice());
  logs_ = std::move(*logs);
  return {};
}

void WorkerGroup::begin_attempt() { children_.use_cgroup(containment_.begin_attempt()); }

Result<pid_t> WorkerGroup::start(const rendezvous::Round& round, int local_rank,
                                 const LocalFacts& facts) {
  auto files = files_.open({.attempt = attempt_of(round),
                            .restart_count = round.restart_count,
                            .local_rank = local_rank,
                            .rank = facts.seat.first_rank + local_rank});
  if (!files) return files.error();
  const WorkerProgram program = config_.command(local_rank);
  LocalFacts complete = facts;
  complete.error_file = files->error_file;
  SpawnSpec spec{.local_rank = local_rank,
                 .file = program.file,
                 .argv = program.argv,
                 .env = worker_variables(config_, round, local_rank, complete)};
  spec.out = std::move(files->out);
  spec.err = std::move(files->err);
  if (const auto released = standbys_.begin_worker(spec)) return *released;
  return children_.spawn(spec);
}

void WorkerGroup::end_worker_that_recorded(int local_rank) {
  children_.end_worker(
      local_rank, fmt::format("recorded an error and did not end within {} s (--teardown-timeout)",
                              in_seconds(config_.teardown_timeout)));
}

std::uint64_t WorkerGroup::steps(int local_rank) const {
  const std::vector<WorkerProgress> progress = standbys_.progress();
  const auto rank = static_cast<std::size_t>(local_rank);
  return rank < progress.size() ? progress[rank].steps : 0;
}

std::vector<std::string> WorkerGroup::error_files(int attempt) const {
  std::vector<std::string> paths;
  paths.reserve(static_cast<std::size_t>(config_.worker_count));
  for (int local_rank = 0; local_rank < config_.worker_count; ++local_rank)
    paths.push_back(files_.error_file(attempt, local_rank));
  return paths;
}

std::chrono::milliseconds WorkerGroup::at_most(std::chrono::milliseconds grace) const {
  if (is_in_a_hurry_) return std::chrono::milliseconds(0);
  return std::min(grace, std::chrono::duration_cast<std::chrono::milliseconds>(config_.grace));
}

// Kill first, drain then. A process that still lived could write into a pipe after it was drained,
// and those bytes would be lost.
void WorkerGroup::end_attempt(std::chrono::milliseconds limit, std::chrono::milliseconds grace) {
  standbys_.attempt_ended();
  containment_.end_attempt(limit, at_most(grace), children_.standbys());
  pipes_.drain();
}

void WorkerGroup::end(std::chrono::milliseconds limit, std::chrono::milliseconds grace) {
  standbys_.end();
  containment_.end(limit, at_most(grace), children_.standbys());
  pipes_.drain();
  standbys_.remove_files();
}

}  // namespace ddprun::agent
