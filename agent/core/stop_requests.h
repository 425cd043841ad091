// Which signals count as a request to end the job. Pure; any thread.
//
// The guardian gets each signal of the user once and passes it on. But a scheduler may signal every
// process of the job (scancel, systemctl stop): the agent then gets the same request twice, once
// itself and once from the guardian. The pair must not be taken for a second request, which kills.
// So only what the guardian passes on is counted; a signal that reaches the agent directly is at
// most the first request. No time window is needed, and two quick Ctrl-C still kill.
#pragma once

namespace ddprun::agent {

class StopRequests {
 public:
  // The guardian passed a signal on. True: it is a request of its own, the first or a further one.
  bool passed_on() {
    const bool first_of_a_pair = asked_ && passed_on_ == 0;
    asked_ = true;
    ++passed_on_;
    return !first_of_a_pair;
  }
  // A signal reached the agent itself. True: it is the first request.
  bool direct() {
    const bool first = !asked_;
    asked_ = true;
    return first;
  }

 private:
  bool asked_ = false;
  int passed_on_ = 0;
};

}  // namespace ddprun::agent
