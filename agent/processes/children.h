// The worker processes of this node: forks them, sends signals to them and reaps them. It decides
// nothing: Lifecycle does. Loop's thread only: the kernel sends the parent-death signal when the
// thread ends that forked (prctl(2), PR_SET_PDEATHSIG). WorkerGroup owns it.
//
// Each worker leads its own session and its own process group (pid = pgid = sid). So a signal to
// the group reaches the worker's data loaders too. The kernel sends SIGKILL to a worker when the
// agent dies. A worker gets fds 0, 1 and 2 and no others. No signal is blocked in it. Signals that
// were ignored when ddprun was started (nohup) stay ignored; all others have their default effect.
#pragma once

#include <sys/resource.h>
#include <sys/types.h>

#include <csignal>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "agent/core/lifecycle.h"
#include "base/file_handle.h"
#include "base/result.h"

namespace ddprun::agent {

struct SpawnSpec {
  int local_rank = 0;
  std::string file;               // path of the executable; already looked up in PATH
  std::vector<std::string> argv;  // argv[0] first
  std::vector<std::string> env;   // NAME=value
  FileHandle out{};               // becomes fd 1 of the worker; -1: the worker inherits ours
  FileHandle err{};               // the same for fd 2
  FileHandle control{};           // becomes fd kControlFd; -1: there is none
};

// The descriptor by which a standby hears from the agent.
inline constexpr int kControlFd = 3;

// The signals that this process ignores now. Call it before the process itself ignores any.
std::vector<int> ignored_signals();

class Children {
 public:
  // Workers ignore the signals of `keep_ignored`.
  explicit Children(std::vector<int> keep_ignored);
  Children(const Children&) = delete;
  Children& operator=(const Children&) = delete;
  ~Children() = default;

  // Sets RLIMIT_NOFILE of the workers started from now on. Without it they have ours, which we
  // raised: programs with select() break on descriptors above 1,023.
  void give_workers(const rlimit& descriptors) { worker_descriptors_ = descriptors; }

  // Starts one worker and returns its pid. It does not wait for execve(): if that fails, reap()
  // returns the worker with exec_errno set. Errors: no pipe or no process could be made (kSystem);
  // then reap() never returns this worker.
  Result<pid_t> spawn(const SpawnSpec& spec);
  // Starts a process that is no worker yet. It gets no signal from the functions below, and reap()
  // does not return it. `cgroup_fd`: as in use_cgroup().
  Result<pid_t> spawn_standby(const SpawnSpec& spec, int cgroup_fd);
  // The same for a process that a fork server has made. False if it is no child of ours.
  bool take_standby(pid_t pid);
  // That process is a worker from now on.
  void adopt(pid_t standby, int local_rank);
  // Ends that process. Does nothing if it has ended: its pid may belong to somebody else.
  void end_standby(pid_t standby) const;
  // The standbys that live. reap() forgets dead ones.
  const std::set<pid_t>& standbys() const { return standbys_; }

  // Workers started from now on are born into the cgroup whose folder this descriptor is. The
  // caller keeps it open. -1: into our own cgroup.
  void use_cgroup(int folder_fd) { cgroup_fd_ = folder_fd; }

  // Sends `signo` to the group of every live worker. Continues stopped workers (SIGCONT), because a
  // stopped process cannot act on a signal.
  void signal_groups(int signo);
  // Sends `signo` to the workers alone, not to their groups. For a signal that is a message and
  // does not end the job.
  void signal_leaders(int signo);
  // Sends the request to end. A worker that has a handler for `signo` gets it alone. Its data
  // loaders must live until it has written its checkpoint. Otherwise its whole group gets it. The
  // worker may be a shell, and the program that it runs may have a handler. Then the shell dies at
  // once, but counts as running until its group is empty. So the program has the grace too.
  void ask_to_end(int signo);
  // The same for one worker. Does nothing if it does not live.
  void ask_worker_to_end(int local_rank, int signo);
  // Call it some time after ask_to_end(). A shell with a trap for `signo` runs the trap only when
  // the command that it waits for has ended. So the groups of shells that still live get `signo`.
  void ask_shells_again(int signo);

  // Kills this worker with its group. reap() returns it with `why` as WorkerExit::ended_for.
  void end_worker(int local_rank, const std::string& why);
  // The same by SIGABRT and without its group: it can still say where it is. It may not end of it.
  void abort_worker(int local_rank, const std::string& why);

  // Reaps every dead child, and kills what is left of its process group. A worker that ended well
  // by itself may have left a helper there: that one lives on, for ask_descendants(). Returns the
  // workers among them, in the order of their deaths. The other children are orphans that the
  // kernel gave us because we are a subreaper. A dead shell that counts as running (ask_to_end())
  // is left for a later call.
  std::vector<WorkerExit> reap();

  // How this worker ends, if it is dying: the kernel has its exit code before it can be reaped.
  // Nothing if it lives, or ends with 0, or it is gone.
  std::optional<WorkerExit> coming_failure(int local_rank) const;

  // 0: there is none.
  pid_t pid_of(int local_rank) const;

  // Live workers only: those that reap() has not returned yet.
  std::vector<pid_t> pids() const;
  int local_rank(pid_t pid) const { return workers_.at(pid).local_rank; }
  std::size_t live() const { return workers_.size(); }

 private:
  struct Worker {
    int local_rank = 0;
    FileHandle exec_pipe;     // read end: gives an errno if execve() failed, otherwise end of file
    FileHandle pidfd;         // deaths_ watches it; -1: there is none (child_deaths.h)
    bool wraps = false;       // a shell whose group got the request to end
    bool is_asked = false;    // it got a request to end, or SIGKILL
    std::string ended_for{};  // end_worker()
  };

  // A new process, and the read end of its pipe for execve()'s errno.
  struct NewProcess {
    pid_t pid = 0;
    FileHandle exec_pipe;
  };

  Result<NewProcess> make_process(const SpawnSpec& spec, int cgroup_fd) const;
  static pid_t fork_into(int cgroup_fd);
  void watch(pid_t pid, Worker& worker) const;
  pid_t note_end(int local_rank, const std::string& why);
  void ask(pid_t pid, Worker& worker, int signo);
  std::vector<pid_t> dead_workers() const;
  std::vector<pid_t> dead_by_pidfd() const;
  bool is_still_needed(pid_t dead) const;
  void reap_orphans();
  void collect(pid_t pid, std::vector<WorkerExit>& exits);

  std::vector<int> keep_ignored_;
  std::optional<rlimit> worker_descriptors_;
  int cgroup_fd_ = -1;
  // An epoll of the workers' pidfds. Its ready list is in the order of the deaths.
  FileHandle deaths_;
  std::map<pid_t, Worker> workers_;
  std::set<pid_t> standbys_;
};

}  // namespace ddprun::agent
