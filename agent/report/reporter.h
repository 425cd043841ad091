// The messages of the agent to people: notices, event lines, the line of waiting, and the failure
// report. All of it goes to stderr. Reporter does not judge: post_mortem.h gathers the facts,
// report.h puts them into words. Runs on the loop's thread. Owned by Agent.
#pragma once

#include <boost/asio/steady_timer.hpp>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "agent/core/clock.h"
#include "agent/core/config.h"
#include "agent/core/lifecycle.h"
#include "agent/output/console.h"
#include "agent/output/worker_files.h"
#include "agent/report/events.h"
#include "agent/report/incident_log.h"
#include "agent/report/incidents.h"
#include "agent/report/notices.h"
#include "agent/report/post_mortem.h"
#include "agent/report/repeated_deaths.h"
#include "agent/report/round_history.h"
#include "base/alarm.h"
#include "base/loop.h"
#include "base/wait_teller.h"
#include "rendezvous/core/progress.h"
#include "rendezvous/core/timeline.h"

namespace ddprun::agent {

class Reporter {
 public:
  // The objects that a reporter looks at. All of it must outlive the reporter.
  struct Sources {
    const AgentConfig& config;
    const Lifecycle& lifecycle;
    const WorkerFiles& files;
    Consoles& consoles;
    // Returns what this node's session waits for; called while the node joins.
    std::function<std::optional<rendezvous::WaitStatus>()> wait_status;
    std::function<rendezvous::UnreachedHost()> unreached;
    // How far this node's workers are, by local rank.
    std::function<std::vector<WorkerProgress>()> progress;
  };

  Reporter(asio::io_context& loop, const Sources& sources, std::string hostname);
  Reporter(const Reporter&) = delete;
  Reporter& operator=(const Reporter&) = delete;
  Reporter(Reporter&&) = delete;
  Reporter& operator=(Reporter&&) = delete;
  ~Reporter() = default;

  // Tells whether the records that the user asked for can be written. Call it before the job
  // begins. Errors name the flag.
  Result<void> check() const { return post_mortem_.check(); }

  // The node asks for a seat. On a terminal a line shows every second what the round waits for,
  // until attempt_begins() or job_ended(). Without a terminal a line comes now and then.
  void joining();
  // The workers of lifecycle.round() are about to start. An empty `log_folder` means that there are
  // no log files.
  void attempt_begins(const std::string& log_folder);
  // They run.
  bool was_short_of_memory() const { return post_mortem_.was_short_of_memory(); }
  void workers_started() { post_mortem_.workers_started(); }
  // A worker was reaped.
  void worker_ended(const WorkerExit& exit);
  // A worker fails; worker_ended() follows.
  void worker_is_ending(const WorkerExit& exit);
  // Returns whether another try after the failure that was told last cannot end otherwise
  // (repeated_deaths.h). Ask only where may_be_pointless(), when the last words of the worker have
  // been read.
  bool may_be_pointless() const { return deaths_.may_be_pointless(); }
  bool is_pointless();
  // Returns the last words of this attempt's first failed worker. Empty if none failed, or it said
  // none.
  std::string last_words() const;
  // The workers were asked to end; all workers of this node ended with 0, and other nodes run on.
  // Both are waits, until the next joining() or job_ended().
  void workers_asked_to_end();
  void node_finished();
  // The round broke; the node will ask for a seat in the next one.
  void round_broken(const rendezvous::RoundBroken& message);
  // Ranks stand still. Returns the folder for its details; empty: there are no files.
  std::string stands_still(const rendezvous::Verdict& verdict);
  // Steps go on after stands_still().
  void went_on(std::chrono::nanoseconds length);
  // Ranks differ in what should be the same. Returns as stands_still() does.
  std::string replicas_differ(const rendezvous::ReplicaVerdict& verdict);
  // --check-replicas cannot compare that rank, or not in full.
  void not_compared(int rank, const std::string& why);
  // Ranks are slower than the others.
  void are_slow(const rendezvous::StragglerVerdict& verdict);
  // All ranks save after this step, and end if the order says so.
  void step_is_agreed(const rendezvous::StepOrder& order);
  // The time after a notice is over: workers that still run are killed.
  void notice_is_over();
  // Returns the incidents so far, for those who ask meanwhile.
  const IncidentLog& incident_log() const { return incident_log_; }
  // The rounds and standstills, as well.
  const rendezvous::Timeline& timeline() const { return timeline_; }
  // The job is over on this node: writes the records and the report. Call it once, when the
  // workers' pipes are drained: else the end of their stderr is missing in the report.
  void job_ended(int exit_code);

 private:
  void show_waiting();
  void end_waiting();
  std::string rendezvous_place() const;
  NoHost no_host() const;
  void look_for_ranks_left_alone();
  void tell_cost(const std::string& stages);
  void tell_incident(const Incident& incident);
  void append(const char* name, const std::string& line) const;
  std::string next_folder(const std::string& what, std::pair<int, int>& so_far) const;
  void tell_of_missing_token();
  void warn_of_no_progress(const rendezvous::Failure& cause);
  static bool listens_on_loopback(const RendezvousPlan& plan);
  Death death() const;
  void tell_what_helps(const ReportFacts& facts);
  // Writes an event line, if the user asked for events.
  void tell(EventState state, const std::optional<WorkerExit>& worker = std::nullopt);
  void say(const std::string& text);

  const Sources sources_;
  const std::string hostname_;
  PostMortem post_mortem_;
  Notices notices_;
  Incidents incidents_;
  IncidentLog incident_log_;
  rendezvous::Timeline timeline_;
  RoundHistory history_;
  const bool keeps_history_;
  std::string log_folder_;
  std::vector<Incident> reported_incidents_;
  RepeatedDeaths deaths_;
  std::pair<int, int> standstills_{-1, 0};  // the attempt, and how many it has had
  std::pair<int, int> differences_{-1, 0};  // of replicas, as well
  std::optional<WorkerExit> first_death_;   // of the attempt
  Death its_facts_;                         // without the last line
  Time attempt_began_{};
  bool gave_up_ = false;              // restarts were left
  asio::steady_timer waiting_timer_;  // runs only while the line of waiting is shown
  WaitTeller wait_;
  Alarm left_alone_alarm_;  // set when a worker ends with 0 before others
  bool noticed_left_alone_ = false;
  const Time started_ = now();
  Time joining_since_{};
  bool warned_of_token_ = false;
  rendezvous::ProgressWatch progress_;  // fed only where no such row ends the job
  bool warned_of_no_progress_ = false;
};

}  // namespace ddprun::agent
