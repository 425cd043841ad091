// Ends a worker that stands still. SIGABRT comes first, so that it can say where it is, and SIGKILL
// a little later. Loop's thread; owned by Standstills.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <string>

#include "agent/processes/children.h"
#include "base/alarm.h"
#include "base/loop.h"

namespace ddprun::agent {

class HungWorker {
 public:
  // From SIGABRT to SIGKILL. To print its stacks takes milliseconds.
  static constexpr std::chrono::seconds kAbortLimit{2};

  // `children` must outlive this.
  HungWorker(asio::io_context& loop, Children& children);

  // Nothing while another one is being ended. `why`: as Children::end_worker() takes it.
  void end(int local_rank, std::string why);
  // The attempt is over: its workers are ended by others.
  void forget();

 private:
  void kill();

  Children& children_;
  pid_t pid_ = 0;  // 0: none
  int local_rank_ = 0;
  std::string why_;
  Alarm alarm_;
};

}  // namespace ddprun::agent
