// What reaches the agent from outside: the deaths of its children, signals, and its guardian. Turns
// them into calls on the loop. Loop's thread; owned by Agent.
#pragma once

#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/signal_set.hpp>
#include <functional>

#include "agent/core/config.h"
#include "agent/core/stop_requests.h"
#include "agent/guardian.h"
#include "proto/loop.h"

namespace ddprun::agent {

class OutsideEvents {
 public:
  struct Handlers {
    std::function<void()> child_died;               // at least one; ask waitpid which
    std::function<void(int signo)> stop_requested;  // each call is a request of its own
    std::function<void(int signo)> message;         // a signal that is for the workers
    std::function<void()> guardian_died;
  };

  // `plan` outlives this. Takes over the descriptor in `start`.
  OutsideEvents(asio::io_context& loop, const SignalPlan& plan, const AgentStart& start);
  OutsideEvents(const OutsideEvents&) = delete;
  OutsideEvents& operator=(const OutsideEvents&) = delete;
  OutsideEvents(OutsideEvents&&) = delete;
  OutsideEvents& operator=(OutsideEvents&&) = delete;
  ~OutsideEvents() = default;

  // Calls the handlers from now on. What came before is not lost.
  void listen(Handlers handlers);

 private:
  void wait_for_child();
  void wait_for_signal();
  void wait_for_guardian();
  bool read_guardian();
  void passed_on(int received);

  const SignalPlan& plan_;
  Handlers handlers_;
  StopRequests requests_;
  asio::signal_set child_signal_;
  asio::signal_set direct_signals_;
  asio::posix::stream_descriptor guardian_;
};

}  // namespace ddprun::agent
