// Decides what one node does with its workers, and when. An event and `now` go in, actions come
// out. It does no I/O, reads no clock and touches no process. agent.cc gives it the events and
// performs its actions, in the order given. Loop's thread; owned by Agent.
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
//   finished -> done       the workers of every node exited 0
//   running, finished -> draining   a worker or another node failed, a signal came, or the
//                          rendezvous is gone, or an operator wants this node out: the workers
//                          are asked to end, then killed
//   draining -> joining    the last worker is gone and a restart was granted
//   draining -> done       the last worker is gone and the job ends; or one survives SIGKILL
//   idle, joining -> done  a signal came, the job ended, the rendezvous is gone, or this node
//                          cannot go on
//
// The rendezvous decides whether a failure leads to a restart: the whole job has one budget. This
// class decides what happens to this node's processes meanwhile.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "agent/core/clock.h"
#include "agent/core/exit_plan.h"
#include "rendezvous/core/rendezvous.h"

namespace ddprun::agent {

// How a worker ended.
struct WorkerExit {
  int local_rank = 0;
  int pid = 0;                 // 0: there never was a process
  int exit_code = 0;           // exit status; minus the signal number if killed (-9 = SIGKILL)
  int exec_errno = 0;          // not 0: execve() failed with this errno; the program never ran
  std::string start_error{};   // not empty: it never was a process, for this reason
  std::string ended_for{};     // not empty: ddprun killed it, and this is what it failed of
  bool dumped_core = false;    // the kernel says so: it wrote the memory somewhere
  bool wants_restart = false;  // by its exit code (--exit-restarts), 0 as well

  bool failed() const { return exit_code != 0 || wants_restart; }
  // If it did not, the launcher made up the exit code.
  bool has_run() const { return exec_errno == 0 && start_error.empty(); }
  bool operator==(const WorkerExit&) const = default;
};

// WorkerExit::ended_for of a worker that stood still begins so.
inline constexpr std::string_view kEndedForHang = "stood still: ";

// ---- actions: what the caller must do ----

// End every process that the old workers left behind, then call Session::join().
struct RequestRound {};
// Start the workers of round().
struct StartWorkers {};
// Send the request to end to every live worker (Children::ask_to_end()).
struct SignalWorkers {
  int signo = 0;
};
// Send the request again, to the groups of those live workers that are shells
// (Children::ask_shells_again()).
struct SignalShells {
  int signo = 0;
};
// Send SIGKILL to the group of every live worker.
struct KillWorkers {};
// Tell the rendezvous that a worker of this node failed.
struct ReportFailure {
  rendezvous::Failure failure;
};
// Tell the rendezvous that all workers of this node exited 0.
struct ReportSuccess {};
// Tell the rendezvous that this node leaves for good (Session::leave()).
struct LeaveJob {
  rendezvous::Failure reason;
};
// The job is over here. End what is left, write the report, end the loop. No action follows.
struct Finish {
  int exit_code = 0;
};
using Action = std::variant<RequestRound, StartWorkers, SignalWorkers, SignalShells, KillWorkers,
                            ReportFailure, ReportSuccess, LeaveJob, Finish>;
using Actions = std::vector<Action>;

// A worker that ended in this round, as the report needs it.
struct EndedWorker {
  WorkerExit exit;
  Time started{};
  Time ended{};
  // We asked it to end, and it ended because of that. False if it failed by itself, or it exited
  // before we asked.
  bool stopped_by_us = false;
};

enum class Phase { kIdle, kJoining, kRunning, kFinished, kDraining, kDone };
// For people and for JSON; a node that drains is "stopping", as its member state is.
std::string_view name_of(Phase phase);

// Why the job ended on this node, for the report and the exit code.
struct Ending {
  bool succeeded = false;
  bool drained = false;                      // an operator took this node out of the job
  bool stopped = false;                      // an operator ended the job for all nodes
  int signal = 0;                            // not 0: this launcher was told to stop
  std::string noticed{};                     // not empty: by a notice that this node got
  bool launcher_failed = false;              // give_up(): something outside the workers
  std::optional<Error> session_error;        // the session with the rendezvous failed
  std::optional<rendezvous::Failure> cause;  // a worker or a node failed
  // Restarts were left, and attempts made no progress.
  std::optional<rendezvous::NoProgress> no_progress{};
};

// How long we wait for a worker after SIGKILL. Only a worker in uninterruptible sleep needs longer.
// We do not wait for it: the job ends, and the process stays.
inline constexpr std::chrono::seconds kKillLimit{10};

class Lifecycle {
 public:
  struct Settings {
    std::chrono::nanoseconds grace{};  // from the request to end to SIGKILL
    // A shell that traps the signal acts on it only after the command that it waits for. After
    // this time the command gets the signal too.
    std::chrono::nanoseconds shell_patience = std::chrono::milliseconds(500);
    std::chrono::nanoseconds kill_limit = kKillLimit;
    int worker_count = 1;
    int max_restarts = 0;
    bool detailed_exit_codes = false;
    ExitPlan exits{};
    std::optional<int> exit_preempted{};
    std::string hostname;
  };

  explicit Lifecycle(Settings settings) : settings_(std::move(settings)) {}

  // Every function that returns Actions: perform all of them in order, then set a timer for
  // look_again_at().

  // Call it once, before anything else but stop_requested(), session_lost() and give_up().
  Actions start();
  // A message of the host. Calls one of the next five functions.
  Actions on_message(const rendezvous::HostMessage& message, Time now);
  Actions round_published(const rendezvous::RoundPublished& message, Time now);
  Actions round_broken(const rendezvous::RoundBroken& message, Time now);
  Actions job_ended(const rendezvous::JobEnded& message, Time now);
  Actions session_lost(const rendezvous::SessionLost& message, Time now);
  Actions drain_wanted(const rendezvous::Drain& message, Time now);
  // Tell it of every worker of StartWorkers exactly once. Include one whose execve() failed and one
  // that could not be forked. `at_once` are the workers that one look found dead, in the order of
  // their deaths. They died before we could react to the first of them. So if they make this node
  // stop its workers, none of them counts as stopped by us.
  Actions worker_exited(const WorkerExit& exit, Time now) { return workers_exited({exit}, now); }
  Actions workers_exited(const std::vector<WorkerExit>& at_once, Time now);
  // The next failure of this round cannot end otherwise after a restart: it ends the job.
  // `words`: as Failure::words of that failure, if they are known.
  void restarts_are_pointless(std::string words = {}) { pointless_ = std::move(words); }
  // A running worker is about to end as `exit` says; its exit follows. A failure is acted on now.
  Actions worker_is_ending(const WorkerExit& exit, Time now);
  // A signal asks to end the job. The first request is passed on to the workers and starts the
  // grace. Every further request kills the workers at once. `end`: the deadline of a notice, which
  // takes the place of the grace.
  Actions stop_requested(int signo, Time now, Time end = Time::max());
  // The workers end after the step of `order`, and hear of it elsewhere (agent/preemption/). Nobody
  // signals them here, unless one more request comes. At the end of the deadline they are killed.
  Actions leave_after_step(const rendezvous::StepOrder& order, Time now);
  // This node cannot go on, and the reason is not a worker's exit. For example, no log folder could
  // be made. A worker that could not be forked is an exit (start_error), and may lead to a restart.
  Actions give_up(const rendezvous::Failure& reason, Time now);
  // Call it at look_again_at(). An earlier call does nothing.
  Actions time_passed(Time now);

  // Returns when to call time_passed(). Each event may change it. Time::max(): never, wait for an
  // event.
  Time look_again_at() const { return look_at_; }

  Phase phase() const { return phase_; }
  // No workers are started any more.
  bool is_ending() const { return phase_ == Phase::kDone || after_drain_ == AfterDrain::kEnd; }
  // The last round that was published to this node. Empty before the first one.
  const rendezvous::Round& round() const { return round_; }
  bool had_round() const { return round_.number > 0; }
  // This node's place in round().
  const rendezvous::Seat& seat() const { return seat_; }
  // Returns whether the global rank `rank` is a worker of this node; false before the first round.
  bool is_own_rank(int rank) const;
  // Whether the worker of this round has exited 0.
  bool has_ended_well(int local_rank) const;
  int live_workers() const { return live_; }
  // Global ranks of this node that have ended in this round, or that still run.
  std::vector<int> own_ranks(bool that_run) const;
  // While draining: when the workers that still run get SIGKILL, and what they were asked by.
  Time kill_at() const { return kill_at_; }
  int closing_signal() const { return closing_signal_; }
  const Ending& ending() const { return ending_; }
  // The workers of this round that have ended, in the order in which we were told.
  const std::vector<EndedWorker>& ended() const { return ended_; }

 private:
  // The next step after the last worker is gone. kUndecided: the rendezvous has not answered our
  // failure yet.
  enum class AfterDrain { kUndecided, kRejoin, kEnd };

  Actions rejoin(Time now);
  Actions drain(AfterDrain after_drain, int signo, Time now);
  Actions worker_failed(const WorkerExit& exit, Time now);
  Actions exited_while_draining(const WorkerExit* ending);
  bool ends_job(const WorkerExit& exit) const;
  bool excludes_node(const WorkerExit& exit) const;
  bool stopped_by_us(const WorkerExit& exit) const;
  Actions drained();
  void drain_sooner(std::chrono::milliseconds deadline, Time now);
  void kill_no_later_than(Time end);
  void kill_at_end_of_notice(Time end, bool has_grace);
  Actions kill(Time now);
  Time end_of_limit(Time due, Time now) const;
  rendezvous::Failure describe(const WorkerExit& exit) const;
  Finish finish() const;

  Settings settings_;
  Phase phase_ = Phase::kIdle;
  rendezvous::Round round_;
  rendezvous::Seat seat_;
  int live_ = 0;
  Time started_{};  // of the attempt
  Time look_at_ = Time::max();
  Time kill_at_ = Time::max();         // end of the grace; valid while draining
  Time kill_at_latest_ = Time::max();  // as others need it, whatever else
  int closing_signal_ = 0;             // the last request to end that the workers got
  bool workers_started_ = false;       // in this round or an earlier one
  bool killed_ = false;                // SIGKILL was sent to the workers of this round
  // Set: a failure of this round ends the job, and these are its words.
  std::optional<std::string> pointless_{};
  bool waits_for_step_ = false;  // the workers got no request to end from here
  int handled_rank_ = -1;        // local rank of the failure that we acted on before the exit
  AfterDrain after_drain_ = AfterDrain::kUndecided;
  Ending ending_;
  std::vector<EndedWorker> ended_;
};

// The number of the round's log folder, attempt_N. Rounds are counted and not restarts: after a
// resize the files of the round before must stay.
inline int attempt_of(const rendezvous::Round& round) { return static_cast<int>(round.number) - 1; }

}  // namespace ddprun::agent
