// The watchdog, which torchrun has behind TORCHELASTIC_ENABLE_FILE_TIMER=1. Workers write deadlines
// into a FIFO. A worker that misses its own deadline is killed, with the signal that it chose.
// torchrun's watchdog then kills its own agent too. Ours does not: the death counts as a failure of
// that worker. Watchdog is the shell around TimerTable. While no deadline is set, nothing wakes it.
// Runs on the loop's thread. Owned by Monitors.
#pragma once

#include <boost/asio/basic_waitable_timer.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "agent/monitors/timer_table.h"
#include "base/loop.h"

namespace ddprun::agent {

// The FIFO's name in a folder of ours.
inline constexpr const char* kTimerName = "watchdog_timer";

class Watchdog {
 public:
  // Makes the FIFO and reads it from now on. An empty `path` means a new folder of our own under
  // $TMPDIR or /tmp. Only this user may open the FIFO, and this object removes it at its end. If a
  // FIFO of this user or root is there already, it is used and not removed. `is_ours` says whether
  // a pid belongs to this job; no other process is ever killed. Errors (kSystem) name the path.
  static Result<std::unique_ptr<Watchdog>> make(asio::io_context& loop, const std::string& path,
                                                std::function<bool(int pid)> is_ours);
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;
  ~Watchdog();

  const std::string& path() const { return place_.path; }
  // The process has ended: drops its deadlines.
  void forget(int pid);

 private:
  struct Place {
    std::string path;
    std::string folder;  // ours to remove; empty: none
    bool made = false;   // the FIFO is ours to remove
    void remove() const;
  };

  Watchdog(asio::io_context& loop, Place place, int fd, std::function<bool(int pid)> is_ours);
  void wait_for_requests();
  void read_requests();
  void take_lines();
  void set_timer();
  void kill_expired();

  const Place place_;
  asio::posix::stream_descriptor fifo_;
  asio::basic_waitable_timer<std::chrono::system_clock> timer_;
  std::function<bool(int pid)> is_ours_;
  TimerTable table_;
  std::string pending_;  // the start of a line
};

}  // namespace ddprun::agent
