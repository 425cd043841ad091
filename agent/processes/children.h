// The worker processes of this node: fork and exec, groups, signals, reaping. The only file of the
// agent that forks a worker or signals one. Shell of the loop's thread: the parent-death signal
// follows the thread that forked.
//
// Each worker leads its own session and process group (pid = pgid = sid), so a signal to the group
// reaches its data loaders too. It dies by SIGKILL when the agent dies. It gets fds 0, 1, 2 and
// nothing else, an empty signal mask and default dispositions, except signals that were already
// ignored when ddprun was started (nohup).
#pragma once

#include <sys/resource.h>
#include <sys/types.h>

#include <csignal>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "agent/core/lifecycle.h"
#include "proto/file_handle.h"
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
  explicit Children(std::vector<int> keep_ignored);
  Children(const Children&) = delete;
  Children& operator=(const Children&) = delete;
  ~Children() = default;

  // RLIMIT_NOFILE of the workers started from now on; without it they have ours. select() cannot
  // handle the descriptors that a raised limit allows.
  void give_workers(const rlimit& descriptors) { worker_descriptors_ = descriptors; }

  // Starts one worker; its pid. An exec that fails is reported by reap() as that worker's exit with
  // exec_errno set. Errors: no pipe or process could be made (kSystem).
  Result<pid_t> spawn(const SpawnSpec& spec);

  // Workers are born into the cgroup behind this descriptor (of its folder; not owned). -1: into
  // ours.
  void use_cgroup(int folder_fd) { cgroup_fd_ = folder_fd; }

  // To the group of every live worker. Stopped workers are continued so that they can act on it.
  void signal_groups(int signo);
  // Only to the worker leading each group; for signals that are a message, not an end.
  void signal_leaders(int signo);
  // The request to end. A worker that handles the signal gets it alone: its data loaders must live
  // until it has written its checkpoint. Where it does not, its whole group gets it, so that what
  // it started under a plain wrapper may end well too: a shell that dies of it counts as running
  // until its group is empty.
  void ask_to_end(int signo);
  // Some time after ask_to_end(): a shell acts on a trap only when the command it waits for has
  // ended, so the groups of those still alive get the signal as well.
  void ask_shells_again(int signo);

  // Collects every dead child: workers are returned in the order of their deaths; others were
  // orphans handed to us as subreaper.
  std::vector<WorkerExit> reap();

  std::vector<pid_t> pids() const;                                         // of the live workers
  int local_rank(pid_t pid) const { return workers_.at(pid).local_rank; }  // of a live one
  std::size_t live() const { return workers_.size(); }

 private:
  struct Worker {
    int local_rank = 0;
    FileHandle exec_pipe;  // read end; holds an errno if execve failed, else just ends
    FileHandle pidfd;      // watched by deaths_
    bool wraps = false;    // a shell that was asked to end with all that it runs
  };

  pid_t fork_worker() const;
  void watch(pid_t pid, Worker& worker) const;
  std::vector<pid_t> dead_workers() const;
  bool is_still_needed(pid_t dead) const;
  void reap_orphans() const;
  void collect(pid_t pid, std::vector<WorkerExit>& exits);

  std::vector<int> keep_ignored_;
  std::optional<rlimit> worker_descriptors_;
  int cgroup_fd_ = -1;
  FileHandle deaths_;  // an epoll of the workers' pidfds: its ready list is in the order of deaths
  std::map<pid_t, Worker> workers_;
};

}  // namespace ddprun::agent
