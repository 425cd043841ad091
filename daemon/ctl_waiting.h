// Tells on stderr what ddpctl waits for, at the moments of WaitSchedule, from its making to its
// end. ddpctl blocks in one question after the other, so this has a thread of its own.
#pragma once

#include <condition_variable>
#include <mutex>
#include <stop_token>
#include <string>
#include <thread>

namespace ddprun::daemon {

class CtlWaiting {
 public:
  // `what`: "an answer of host:29400".
  explicit CtlWaiting(std::string what);
  CtlWaiting(const CtlWaiting&) = delete;
  CtlWaiting& operator=(const CtlWaiting&) = delete;
  ~CtlWaiting() = default;

  // Why the last question was in vain.
  void note(std::string why);

 private:
  void tell(const std::stop_token& stop);

  const std::string what_;
  std::string why_;  // under mutex_
  std::mutex mutex_;
  std::condition_variable_any stopped_;
  std::jthread thread_;  // last: it uses all of the above
};

}  // namespace ddprun::daemon
