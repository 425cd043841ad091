// The events that reach the agent from outside: deaths of its children, signals, and bytes from its
// guardian. SignalsAndExits turns each of them into a call of a handler on the loop. It reaps no
// child and does not know the job: StopRequests decides which signal counts, the handlers do the
// rest. Runs on the loop's thread. Owned by Agent.
#pragma once

#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/signal_set.hpp>
#include <functional>

#include "agent/core/config.h"
#include "agent/core/stop_requests.h"
#include "agent/guardian/guardian.h"
#include "base/loop.h"

namespace ddprun::agent {

class SignalsAndExits {
 public:
  struct Handlers {
    // At least one child died. One SIGCHLD may stand for many deaths (signal(7)), so the handler
    // must collect all dead children.
    std::function<void()> child_died;
    // The user or the scheduler asks to end the job. Each call is one more request.
    std::function<void(int signo)> stop_requested;
    // The first of such requests, after which the workers may save. Further ones are as above.
    std::function<void(int signo)> notice;
    std::function<void(int signo)> message;  // a signal that is for the workers
    std::function<void()> guardian_died;
  };

  // `plan` must outlive this object. Owns start.guardian_pipe from now on. From here on signals are
  // caught; the agent may unblock them after listen().
  SignalsAndExits(asio::io_context& loop, const SignalPlan& plan, const AgentStart& start);
  SignalsAndExits(const SignalsAndExits&) = delete;
  SignalsAndExits& operator=(const SignalsAndExits&) = delete;
  SignalsAndExits(SignalsAndExits&&) = delete;
  SignalsAndExits& operator=(SignalsAndExits&&) = delete;
  ~SignalsAndExits() = default;

  // Calls the handlers from now on, always from the loop. Call it once. Signals that came between
  // the constructor and this call are not lost.
  void listen(Handlers handlers);

 private:
  void wait_for_child();
  void wait_for_signal();
  void wait_for_guardian();
  bool read_guardian();
  void passed_on(int received);
  void request(const SignalMeaning& meaning);

  const SignalPlan& plan_;
  Handlers handlers_;
  StopRequests requests_;
  bool is_noticed_ = false;
  asio::signal_set child_signal_;
  asio::signal_set direct_signals_;
  asio::posix::stream_descriptor guardian_;
};

}  // namespace ddprun::agent
