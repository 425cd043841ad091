// The worker processes of this node: fork and exec, groups, signals, reaping. The only file of the
// agent that forks a worker or signals one. Shell of the loop's thread: the parent-death signal
// follows the thread that forked.
//
// Each worker leads its own session and process group (pid = pgid = sid), so a signal to the group
// reaches its data loaders too. It dies by SIGKILL when the agent dies. It gets fds 0, 1, 2 and
// nothing else, an empty signal mask and default dispositions, except signals that were already
// ignored when ddprun was started (nohup).
#pragma once

#include <sys/types.h>

#include <csignal>
#include <map>
#include <string>
#include <vector>

#include "agent/file_handle.h"
#include "agent/lifecycle.h"
#include "proto/result.h"

namespace ddprun::agent {

struct SpawnSpec {
  int local_rank = 0;
  std::string file;               // path of the executable; already looked up in PATH
  std::vector<std::string> argv;  // argv[0] first
  std::vector<std::string> env;   // NAME=value
  FileHandle out{};               // becomes fd 1 of the worker; none: it inherits ours
  FileHandle err{};               // fd 2
};

// The signals that this process ignored when it was started.
std::vector<int> ignored_signals();

class Children {
 public:
  explicit Children(std::vector<int> keep_ignored) : keep_ignored_(std::move(keep_ignored)) {}
  Children(const Children&) = delete;
  Children& operator=(const Children&) = delete;
  ~Children() = default;

  // Starts one worker; its pid. An exec that fails is reported by reap() as that worker's exit with
  // exec_errno set. Errors: no pipe or process could be made (kSystem).
  Result<pid_t> spawn(const SpawnSpec& spec);

  // To the group of every live worker. Stopped workers are continued so that they can act on it.
  void signal_groups(int signo);
  // Only to the worker leading each group; for signals that are a message, not an end.
  void signal_leaders(int signo);

  // Collects every dead child: workers are returned; others were orphans handed to us as subreaper.
  std::vector<WorkerExit> reap();

  std::size_t live() const { return workers_.size(); }

 private:
  struct Worker {
    int local_rank = 0;
    FileHandle exec_pipe;  // read end; holds an errno if execve failed, else just ends
  };

  std::vector<int> keep_ignored_;
  std::map<pid_t, Worker> workers_;
};

}  // namespace ddprun::agent
