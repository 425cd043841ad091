// What the agent says on the console, and when: the other half of agent.cc, which does.
#include <fmt/format.h>

#include "agent/agent.h"
#include "agent/report/report.h"
#include "proto/log.h"

namespace ddprun::agent {
namespace {

// How often the line of waiting is written anew.
constexpr std::chrono::seconds kWaitingTick{1};

}  // namespace

// Only a terminal is told, and only where there is somebody to wait for.
void Agent::show_waiting() {
  if (!notices_.shows_waiting() || config_.rendezvous.node_count == 1) return;
  waiting_timer_.expires_after(kWaitingTick);
  waiting_timer_.async_wait([this](boost::system::error_code cancelled) {
    if (cancelled || lifecycle_.phase() != Phase::kJoining) return;
    using std::chrono::duration_cast;
    using std::chrono::seconds;
    const RendezvousPlan& plan = config_.rendezvous;
    say(notices_.waiting(fmt::format("{}:{}", plan.host, plan.port),
                         duration_cast<seconds>(now() - joining_since_),
                         duration_cast<seconds>(plan.join_timeout)));
    show_waiting();
  });
}

void Agent::tell_ending(int exit_code) {
  const Ending& ending = lifecycle_.ending();
  const ReportFacts facts = autopsy_.examine(lifecycle_, hostname_);
  autopsy_.file(facts, ending, exit_code);
  if (ending.succeeded) return;
  const std::string report = failure_report(facts);
  consoles_.err().begin_last_words();
  consoles_.err().begin_line();  // a worker may have died behind a prompt or a progress bar
  say(report);
  // The report tells of this node's workers; a cause that is none of them gets its line.
  const bool told = !report.empty() && ending.signal == 0 && !ending.session_error &&
                    (!ending.cause || lifecycle_.is_own_rank(ending.cause->rank));
  if (!told) say(ending_line(ending));
}

void Agent::tell(EventState state, const std::optional<WorkerExit>& worker) {
  if (!config_.console_events) return;
  const bool seated = worker && !lifecycle_.round().seats.empty();
  using std::chrono::milliseconds;
  say(event_line({.state = state,
                  .hostname = hostname_,
                  .since_start = std::chrono::duration_cast<milliseconds>(now() - started_),
                  .worker = worker,
                  .rank = seated ? lifecycle_.own_seat().first_rank + worker->local_rank : 0},
                 config_, lifecycle_.round().restart_count));
}

void Agent::tell_restart(const rendezvous::Failure& cause) {
  const int restarts = lifecycle_.round().restart_count + 1;
  const std::string line = notices_.restarting(cause, restarts, config_.restarts);
  if (line.empty()) log::info(fmt::format("restart {}: {}", restarts, cause.message));
  say(line);
}

void Agent::say(const std::string& text) {
  if (!text.empty()) consoles_.err().write(text);
}

}  // namespace ddprun::agent
