// The watchdog that torchrun has behind TORCHELASTIC_ENABLE_FILE_TIMER=1: workers write deadlines
// into a FIFO, and one that misses its own is killed with the signal it chose. Unlike there the
// agent lives on: the death counts as a failure of that worker. Shell over TimerTable; loop's
// thread; owned by Agent. Nothing wakes it while no deadline is set.
#pragma once

#include <boost/asio/basic_waitable_timer.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "agent/monitors/timer_table.h"
#include "proto/loop.h"

namespace ddprun::agent {

class Watchdog {
 public:
  // `path` empty: a name of our own under $TMPDIR. The FIFO is this user's alone and is removed
  // with this object; one that is there already is used and left. Errors name the path.
  static Result<std::unique_ptr<Watchdog>> make(asio::io_context& loop, const std::string& path,
                                                std::function<bool(int pid)> is_ours);
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;
  ~Watchdog();

  const std::string& path() const { return path_; }
  // The process ended.
  void forget(int pid);

 private:
  Watchdog(asio::io_context& loop, std::string path, bool made, int fd,
           std::function<bool(int pid)> is_ours);
  void wait_for_requests();
  void read_requests();
  void take_lines();
  void set_timer();
  void kill_expired();

  std::string path_;
  bool made_;
  asio::posix::stream_descriptor fifo_;
  asio::basic_waitable_timer<std::chrono::system_clock> timer_;
  std::function<bool(int pid)> is_ours_;  // whether a pid is of this job
  TimerTable table_;
  std::string pending_;  // the start of a line
};

}  // namespace ddprun::agent
