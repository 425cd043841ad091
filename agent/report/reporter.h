// What the agent says to people while the job runs and when it ends: notices, event lines, the line
// of waiting, the failure report. It judges nothing: autopsy.h gathers the facts, report.h words
// them. Loop's thread; owned by Agent.
#pragma once

#include <boost/asio/steady_timer.hpp>
#include <optional>
#include <string>

#include "agent/core/clock.h"
#include "agent/core/config.h"
#include "agent/core/lifecycle.h"
#include "agent/output/console.h"
#include "agent/output/worker_files.h"
#include "agent/report/autopsy.h"
#include "agent/report/events.h"
#include "agent/report/notices.h"
#include "proto/loop.h"

namespace ddprun::agent {

class Reporter {
 public:
  // What a reporter looks at; all of it outlives the reporter.
  struct Sources {
    const AgentConfig& config;
    const Lifecycle& lifecycle;
    const WorkerFiles& files;
    Consoles& consoles;
  };

  Reporter(asio::io_context& loop, const Sources& sources, std::string hostname);
  Reporter(const Reporter&) = delete;
  Reporter& operator=(const Reporter&) = delete;
  Reporter(Reporter&&) = delete;
  Reporter& operator=(Reporter&&) = delete;
  ~Reporter() = default;

  // Whether the records that the user asked for can be written. Errors name the flag.
  Result<void> check() const { return autopsy_.check(); }

  // The node has asked for a seat. A terminal is shown whom it waits for, until the next call.
  void joining();
  // The workers of lifecycle.round() are about to start. `log_folder` is empty when there are no
  // files.
  void attempt_begins(const std::string& log_folder);
  void worker_ended(const WorkerExit& exit);
  // The round broke and a restart was granted.
  void restarting(const rendezvous::Failure& cause);
  // The job is over on this node: writes the records and the report. Call when the workers' pipes
  // are drained.
  void job_ended(int exit_code);

 private:
  void show_waiting();
  void end_waiting();
  void tell(EventState state, const std::optional<WorkerExit>& worker = std::nullopt);
  void say(const std::string& text);

  const Sources sources_;
  const std::string hostname_;
  Autopsy autopsy_;
  Notices notices_;
  asio::steady_timer waiting_timer_;  // ticks only while a terminal shows that nodes are awaited
  const Time started_ = now();
  Time joining_since_{};
};

}  // namespace ddprun::agent
