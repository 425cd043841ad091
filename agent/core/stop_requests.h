// Decides which signals count as a request to end the job. Pure; owned by SignalsAndExits, on the
// loop's thread.
//
// The guardian gets each signal of the user once and passes it on to the agent. But a scheduler may
// signal every process of the job (scancel, systemctl stop). Then the agent gets one request twice:
// directly, and from the guardian. It must not take the pair for two requests, because the second
// request kills the workers. So only signals from the guardian are counted; a direct signal is the
// first request or none. This needs no time window: two quick Ctrl-C still kill.
#pragma once

#include <utility>

namespace ddprun::agent {

class StopRequests {
 public:
  // The guardian passed a signal on. True if it is a new request, the first or a further one.
  // False if the agent has already got the same signal directly.
  bool passed_on(int signo) {
    const bool is_second_of_a_pair = std::exchange(direct_, 0) == signo;
    asked_ = true;
    return !is_second_of_a_pair;
  }
  // A signal reached the agent directly. True if it is the first request. Otherwise ignore it.
  bool direct(int signo) {
    if (asked_) return false;
    asked_ = true;
    direct_ = signo;
    return true;
  }

 private:
  bool asked_ = false;
  int direct_ = 0;  // a direct request whose other copy the guardian has not passed on yet
};

}  // namespace ddprun::agent
