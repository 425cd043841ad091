#include "agent/core/config.h"

#include <algorithm>
#include <array>
#include <functional>

namespace ddprun::agent {

std::vector<int> handled_signals(const SignalPlan& plan) {
  // The first four always end the job, whatever the user lists. Without a handler the launcher
  // would die of them and report nothing. The last two are for the workers, unless they are listed.
  std::vector<int> signals = {SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2};
  const auto add = [&signals](int signo) {
    if (std::find(signals.begin(), signals.end(), signo) == signals.end()) signals.push_back(signo);
  };
  for (const int signo : plan.stop) add(signo);
  for (const int signo : plan.notice) add(signo);
  for (const auto& [received, meant] : plan.map) add(received);
  return signals;
}

// A signal ends the job if it is in `plan.stop` or one of the four that usually end a program.
// Every other signal is a message for the workers: USR1, USR2, and what the user maps a signal to.
SignalMeaning meaning_of(const SignalPlan& plan, int received) {
  const auto mapped = plan.map.find(received);
  const int signo = mapped == plan.map.end() ? received : mapped->second;
  constexpr std::array kEnding = {SIGTERM, SIGINT, SIGHUP, SIGQUIT};
  const bool stops = std::find(plan.stop.begin(), plan.stop.end(), signo) != plan.stop.end() ||
                     std::find(kEnding.begin(), kEnding.end(), signo) != kEnding.end();
  const auto is_notice = [&plan](int any) {
    return std::ranges::find(plan.notice, any) != plan.notice.end();
  };
  const bool notices = is_notice(received) || is_notice(signo);
  return {signo, !stops && !notices, notices};
}

bool may_restart(const AgentConfig& config, int restart_count) {
  const RestartPlan& restarts = config.restarts;
  if (config.rendezvous.min_nodes < config.rendezvous.max_nodes) return true;
  return restarts.max_restarts > 0 &&
         (restarts.window.count() > 0 || restart_count < restarts.max_restarts);
}

bool may_give_up_restarts(const AgentConfig& config) {
  const RestartPlan& plan = config.restarts;
  const bool ends_row = plan.most_without_progress > 0 && plan.ends_without_progress();
  return !ends_row && plan.window.count() == 0 && plan.backoff.count() == 0 &&
         config.rendezvous.min_nodes == config.rendezvous.max_nodes;
}

bool wants_files(const AgentConfig& config) {
  return std::any_of(config.streams.begin(), config.streams.end(),
                     std::mem_fn(&StreamPlan::has_files));
}

}  // namespace ddprun::agent
