// One node of a job: feeds the lifecycle with what happens (workers' deaths, news of the
// rendezvous, signals, time) and performs what it decides. Everything runs on one loop's thread;
// nothing polls.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/steady_timer.hpp>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "agent/core/config.h"
#include "agent/core/lifecycle.h"
#include "agent/guardian.h"
#include "agent/monitors/monitors.h"
#include "agent/network/node_services.h"
#include "agent/output/console.h"
#include "agent/output/log_pipes.h"
#include "agent/output/log_tree.h"
#include "agent/output/worker_files.h"
#include "agent/processes/children.h"
#include "agent/processes/containment.h"
#include "agent/report/autopsy.h"
#include "agent/report/events.h"
#include "agent/report/notices.h"

namespace ddprun::agent {

class Agent {
 public:
  Agent(asio::io_context& loop, AgentConfig config, const AgentStart& start);
  Agent(const Agent&) = delete;
  Agent& operator=(const Agent&) = delete;
  ~Agent() = default;

  // Runs the job to its end on this node; the exit code of ddprun. Prints what the user must know
  // on stderr.
  int run();

 private:
  asio::awaitable<void> start();
  asio::awaitable<void> end();
  void wait_for_child();
  void wait_for_signal();
  void wait_for_guardian();
  void handle_signal(int received);
  void handle(const rendezvous::HostMessage& message);
  void reap();

  void perform(const Actions& actions);
  void perform(const JoinRound& action);
  void perform(const StartWorkers& action);
  void perform(const SignalWorkers& action);
  void perform(const SignalShells& action);
  void perform(const KillWorkers& action);
  void perform(const ReportFailure& action);
  void perform(const ReportSuccess& action);
  void perform(const LeaveJob& action);
  void perform(const Finish& action);

  void watch_signals(const std::vector<int>& ignored);
  Result<void> prepare();
  void start_worker(int local_rank);
  Result<SpawnSpec> spawn_spec(int local_rank);
  void show_waiting();
  void tell(EventState state, const std::optional<WorkerExit>& worker = std::nullopt);
  void tell_restart(const rendezvous::Failure& cause);
  void say(const std::string& text);
  void sweep(std::chrono::milliseconds limit);
  void set_timer();
  void tell_ending(int exit_code);
  void give_up_on(pid_t pid);
  void die_without_guardian();

  asio::io_context& loop_;
  AgentConfig config_;
  std::string hostname_;
  std::string node_id_;
  Lifecycle lifecycle_;
  Children children_;
  LogTree logs_;
  WorkerFiles files_;
  Consoles consoles_;
  LogPipes pipes_;
  Autopsy autopsy_;
  Containment containment_;
  asio::signal_set child_signal_;
  asio::signal_set user_signals_;
  asio::posix::stream_descriptor guardian_pipe_;
  char* temporary_folder_;  // the guardian's note (guardian.h)
  asio::steady_timer timer_;
  asio::steady_timer waiting_timer_;  // ticks only while a terminal shows that nodes are awaited
  Monitors monitors_;
  Notices notices_;
  const Time started_;
  Time joining_since_{};
  Time timer_at_ = Time::max();
  int exit_code_ = 1;
  std::unique_ptr<NodeServices> services_;  // last: its news handler refers to everything above
};

// Runs the agent in the process that run_guarded() made for it; its exit code.
int run_agent(AgentConfig config, const AgentStart& start);

}  // namespace ddprun::agent
