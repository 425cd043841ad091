// What one node does with its workers, and when. The core of the agent: an event and `now` go in,
// actions come out. No I/O, no clock, no process: agent.cc feeds it and performs what it says, in
// the order given. One thread; owned by Agent.
//
//   idle --> joining --> running --> finished --> done
//               ^           |            |
//               |           v            |
//               +------- draining <------+
//                           |
//                           v
//                          done
//
//   running  -> finished   all workers of this node exited 0; the other nodes may still run
//   finished -> done       every node said so
//   running, finished -> draining   a worker or another node failed, a signal came, or the
//                          rendezvous is gone: the workers are asked to end, then killed
//   draining -> joining    the last worker is gone and a restart was granted
//   draining -> done       the last worker is gone and nothing comes next
//
// Whether a failure is answered by a restart is the rendezvous' decision (one budget for the whole
// job); what happens to this node's processes meanwhile is decided here.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "agent/core/clock.h"
#include "rendezvous/rendezvous.h"

namespace ddprun::agent {

// How a worker ended, as the kernel and the spawn told it.
struct WorkerExit {
  int local_rank = 0;
  int pid = 0;
  int exit_code = 0;          // its exit status, or minus the signal that killed it
  int exec_errno = 0;         // not 0: it never started, execve failed with this errno
  std::string start_error{};  // not empty: there was not even a process, for this reason

  bool failed() const { return exit_code != 0; }
  bool operator==(const WorkerExit&) const = default;
};

// ---- what the shell must do ----

// End what the old workers left behind, then join().
struct JoinRound {};
// Spawn the workers of round().
struct StartWorkers {};
// The request to end, to every live worker (children.h, ask_to_end).
struct SignalWorkers {
  int signo = 0;
};
// The request again, to the groups of live workers that are shells.
struct SignalShells {
  int signo = 0;
};
// SIGKILL to the group of every live worker.
struct KillWorkers {};
// Tell the rendezvous that a worker of this node failed.
struct ReportFailure {
  rendezvous::Failure failure;
};
// Tell the rendezvous that all workers of this node exited 0.
struct ReportSuccess {};
// Tell the rendezvous that this node goes. The job ends with it.
struct LeaveJob {
  rendezvous::Failure reason;
};
// Everything is over: end what is left, report, end the loop.
struct Finish {
  int exit_code = 0;
};
using Action = std::variant<JoinRound, StartWorkers, SignalWorkers, SignalShells, KillWorkers,
                            ReportFailure, ReportSuccess, LeaveJob, Finish>;
using Actions = std::vector<Action>;

// A worker that ended in this round, with what the report needs.
struct EndedWorker {
  WorkerExit exit;
  Time started{};
  Time ended{};
  bool stopped_by_us = false;  // it still ran when it was asked to end, and did not end otherwise
};

enum class Phase { kIdle, kJoining, kRunning, kFinished, kDraining, kDone };

// Why the job ended on this node, for the report and the exit code.
struct Ending {
  bool succeeded = false;
  int signal = 0;                            // not 0: this launcher was told to stop
  bool launcher_failed = false;              // give_up(): something outside the workers
  std::optional<Error> session_error;        // the rendezvous failed
  std::optional<rendezvous::Failure> cause;  // a worker or node failed
};

// How long after SIGKILL a worker may take to go. One in uninterruptible sleep takes longer; it is
// left and the job ends.
inline constexpr std::chrono::seconds kKillLimit{10};

class Lifecycle {
 public:
  struct Settings {
    std::chrono::nanoseconds grace{};  // between the first signal and SIGKILL
    // How long a shell that traps the signal has before the command it may wait for gets it too.
    std::chrono::nanoseconds shell_patience = std::chrono::milliseconds(500);
    std::chrono::nanoseconds kill_limit = kKillLimit;
    int worker_count = 1;
    int max_restarts = 0;
    bool detailed_exit_codes = false;
    std::string hostname;
  };

  explicit Lifecycle(Settings settings) : settings_(std::move(settings)) {}

  Actions start();
  // What the rendezvous says; one of the four below.
  Actions told(const rendezvous::HostMessage& message, Time now);
  Actions round_published(const rendezvous::RoundPublished& message, Time now);
  Actions round_broken(const rendezvous::RoundBroken& message, Time now);
  Actions job_ended(const rendezvous::JobEnded& message, Time now);
  Actions session_lost(const rendezvous::SessionLost& message, Time now);
  // Every spawned worker ends in exactly one of these, also one whose execve failed. `at_once`:
  // workers that were dead already when the first of them was told; none of them was stopped by us.
  Actions worker_exited(const WorkerExit& exit, Time now) { return workers_exited({exit}, now); }
  Actions workers_exited(const std::vector<WorkerExit>& at_once, Time now);
  // A signal that means "end the job". The first is passed on and starts the grace; a second kills
  // at once.
  Actions stop_requested(int signo, Time now);
  // Something outside the workers makes going on impossible (no process could be made, a log file
  // not opened).
  Actions give_up(const rendezvous::Failure& reason, Time now);
  // Call when look_again_at() has come.
  Actions time_passed(Time now);

  // When time_passed() must be called, unless an event comes first. Time::max(): only an event
  // matters.
  Time look_again_at() const { return look_at_; }

  Phase phase() const { return phase_; }
  // The round in force; valid from kRunning on.
  const rendezvous::Round& round() const { return round_; }
  int seat() const { return seat_; }
  const rendezvous::Seat& own_seat() const {
    return round_.seats.at(static_cast<std::size_t>(seat_));
  }
  bool is_own_rank(int rank) const;
  int live_workers() const { return live_; }
  const Ending& ending() const { return ending_; }
  // The workers of this round that have ended, in the order in which that was noticed.
  const std::vector<EndedWorker>& ended() const { return ended_; }

 private:
  enum class AfterDrain { kUndecided, kRejoin, kEnd };

  Actions drain(AfterDrain after_drain, int signo, Time now);
  bool stopped_by_us(const WorkerExit& exit) const;
  Actions drained();
  Actions kill(Time now);
  rendezvous::Failure describe(const WorkerExit& exit) const;
  Finish finish() const;

  Settings settings_;
  Phase phase_ = Phase::kIdle;
  rendezvous::Round round_;
  int seat_ = 0;
  int live_ = 0;
  Time started_{};
  Time look_at_ = Time::max();
  Time kill_at_ = Time::max();    // end of the grace of the drain under way
  int closing_signal_ = 0;        // of the drain under way or the last one
  bool workers_started_ = false;  // in this round or an earlier one
  bool killed_ = false;           // SIGKILL was sent to the workers of this round
  AfterDrain after_drain_ =
      AfterDrain::kUndecided;  // while draining: what comes after the last worker
  Ending ending_;
  std::vector<EndedWorker> ended_;
};

// "SIGKILL" for 9; "signal 35" for one without a name.
std::string signal_name(int signo);

}  // namespace ddprun::agent
