// The workers of this node, for one attempt after the other. It has their processes, the means that
// none of them survives, and the ways of their output. WorkerGroup joins Children, Containment and
// WorkerFiles, which do not know each other. It decides nothing: the lifecycle does. Runs on the
// loop's thread. Owned by Agent.
#pragma once

#include <unistd.h>

#include <chrono>
#include <functional>
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
#include "agent/standby/standbys.h"
#include "agent/worker_group/store_gate.h"
#include "base/loop.h"
#include "rendezvous/core/rendezvous.h"

namespace ddprun::agent {

class WorkerGroup {
 public:
  // The facts that ddprun found when it was started.
  struct AtStart {
    std::string hostname;
    std::vector<int> ignored_signals;  // workers ignore them too
  };

  // `config` and `consoles` must outlive this object. Raises this process's limit of open files.
  // `dying`: as Standbys takes it.
  WorkerGroup(asio::io_context& loop, const AgentConfig& config, Consoles& consoles,
              AtStart at_start, DyingHandler dying);
  WorkerGroup(const WorkerGroup&) = delete;
  WorkerGroup& operator=(const WorkerGroup&) = delete;
  WorkerGroup(WorkerGroup&&) = delete;
  WorkerGroup& operator=(WorkerGroup&&) = delete;
  ~WorkerGroup() = default;

  // Makes the job's log folder. Call it once, before the first attempt. Errors name the folder.
  Result<void> open_logs();

  // Makes what standbys and the workers' pages need. Without it workers start as if there were
  // none.
  void open_standbys() { standbys_.open(); }
  // Returns whether a peer of this host may use the store.
  bool may_use_store(int fd) { return config_.watch.any_store_user || gate_.admits(fd); }
  // The job's own folder, which is gone at its end. Empty if it could not be made.
  const std::string& scratch_folder() const { return standbys_.folder(); }

  // Calls `start` when the attempt should begin, with begin_attempt() (Standbys::prepare()).
  void prepare_attempt(std::function<void()> start) { standbys_.prepare(std::move(start)); }
  void forget_attempt() { standbys_.forget_start(); }
  // Makes the cgroup into which the workers of this attempt are born, if the host allows one. Call
  // it before the attempt's first start().
  void begin_attempt();
  // Starts one worker and returns its pid. Errors: a log file could not be opened, or no process
  // could be made. A program that cannot be executed is no error here: Children::reap() reports it
  // as that worker's exit.
  Result<pid_t> start(const rendezvous::Round& round, int local_rank, const LocalFacts& facts);
  // All of the attempt's workers are started. `may_restart`: another attempt can follow it.
  void attempt_started(bool may_restart) { standbys_.attempt_started(may_restart); }
  // All workers have ended well. If another node fails after all, they start cold.
  void expect_no_restart() { standbys_.expect_no_restart(); }
  // Passes on what the workers have written until now.
  void catch_up() { pipes_.catch_up(); }
  // Kills the rest of the attempt but its standbys, and waits up to `limit` for its end. Passes on
  // the output that is still in the pipes. Blocks the loop. Kills workers too: call only when none
  // may survive. Before that, processes that workers left behind are asked to end. They have
  // `grace` for it, but no longer than workers have, and none after hurry().
  void end_attempt(std::chrono::milliseconds limit, std::chrono::milliseconds grace);
  // The same at the end of the job, with the standbys.
  void end(std::chrono::milliseconds limit, std::chrono::milliseconds grace);
  void hurry() { is_in_a_hurry_ = true; }
  // Removes the log folder if it is a temporary one; with `keep_files` only if it holds no file.
  void remove_logs(bool keep_files) const { logs_.clean_up(keep_files); }

  // The error file of each local rank (WorkerFiles::error_file()).
  std::vector<std::string> error_files(int attempt) const;

  // Kills a worker that recorded an error and hangs in its teardown.
  void end_worker_that_recorded(int local_rank);
  // Returns how many steps it has done so far.
  std::uint64_t steps(int local_rank) const;

  Children& children() { return children_; }
  // Returns how far the workers say they are, by local rank.
  std::vector<WorkerProgress> progress() const { return standbys_.progress(); }
  // The workers' pages; null if there are none.
  const WorkerPages* pages() const { return standbys_.pages(); }
  const LogTree& logs() const { return logs_; }
  const WorkerFiles& files() const { return files_; }

 private:
  std::chrono::milliseconds at_most(std::chrono::milliseconds grace) const;

  const AgentConfig& config_;
  Children children_;
  Containment containment_;
  Standbys standbys_;
  LogTree logs_;
  LogPipes pipes_;
  WorkerFiles files_;
  StoreGate gate_{[] { return users_below(::getpid()); }};
  bool is_in_a_hurry_ = false;
};

}  // namespace ddprun::agent
