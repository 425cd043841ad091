#include "agent/core/config.h"

#include <algorithm>
#include <array>
#include <functional>

namespace ddprun::agent {

std::vector<int> handled_signals(const SignalPlan& plan) {
  // Whatever the user lists, these end the job: a launcher that dies of one would end it without a
  // word. And these two are for the workers, unless listed.
  std::vector<int> signals = {SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2};
  const auto add = [&signals](int signo) {
    if (std::find(signals.begin(), signals.end(), signo) == signals.end()) signals.push_back(signo);
  };
  for (const int signo : plan.stop) add(signo);
  for (const auto& [received, meant] : plan.map) add(received);
  return signals;
}

// USR1 and USR2 are for the workers, unless the user gave them another meaning; so is whatever else
// the user maps a signal to, unless it ends programs.
SignalMeaning meaning_of(const SignalPlan& plan, int received) {
  const auto mapped = plan.map.find(received);
  const int signo = mapped == plan.map.end() ? received : mapped->second;
  constexpr std::array kEnding = {SIGTERM, SIGINT, SIGHUP, SIGQUIT};
  const bool stops = std::find(plan.stop.begin(), plan.stop.end(), signo) != plan.stop.end() ||
                     std::find(kEnding.begin(), kEnding.end(), signo) != kEnding.end();
  return {signo, !stops};
}

bool wants_files(const AgentConfig& config) {
  return std::any_of(config.streams.begin(), config.streams.end(),
                     std::mem_fn(&StreamPlan::has_files));
}

}  // namespace ddprun::agent
