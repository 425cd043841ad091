// The workers of this node, attempt by attempt: their processes, what keeps them together, and
// where their output goes. Joins Children, Containment and WorkerFiles, which do not know each
// other. It decides nothing. Loop's thread; owned by Agent.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "agent/core/config.h"
#include "agent/core/worker_variables.h"
#include "agent/output/console.h"
#include "agent/output/log_pipes.h"
#include "agent/output/log_tree.h"
#include "agent/output/worker_files.h"
#include "agent/processes/children.h"
#include "agent/processes/containment.h"
#include "proto/loop.h"
#include "rendezvous/rendezvous.h"

namespace ddprun::agent {

class WorkerGroup {
 public:
  // `config` and `consoles` outlive this. `ignored_signals` were ignored when ddprun was started;
  // workers ignore them too.
  WorkerGroup(asio::io_context& loop, const AgentConfig& config, Consoles& consoles,
              std::string hostname, const std::vector<int>& ignored_signals);
  WorkerGroup(const WorkerGroup&) = delete;
  WorkerGroup& operator=(const WorkerGroup&) = delete;
  WorkerGroup(WorkerGroup&&) = delete;
  WorkerGroup& operator=(WorkerGroup&&) = delete;
  ~WorkerGroup() = default;

  // Makes the job's log folder. Errors name the folder.
  Result<void> open_logs();

  // What every worker started from now on is born into.
  void begin_attempt();
  // Starts one worker. Errors: no file could be opened, no process be made.
  Result<pid_t> start(const rendezvous::Round& round, int local_rank, const LocalFacts& facts);
  // Kills what is left of the attempt, waits up to `limit` for it, and passes on what it wrote.
  // Blocks the loop. Kills workers too: call only when none may survive.
  void end_attempt(std::chrono::milliseconds limit);
  // Removes a temporary log folder; with `keep_files` only if no file is in it.
  void remove_logs(bool keep_files) const { logs_.clean_up(keep_files); }

  Children& children() { return children_; }
  const LogTree& logs() const { return logs_; }
  const WorkerFiles& files() const { return files_; }

 private:
  const AgentConfig& config_;
  Children children_;
  Containment containment_;
  LogTree logs_;
  LogPipes pipes_;
  WorkerFiles files_;
};

}  // namespace ddprun::agent
