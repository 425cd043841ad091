// Looks each second whether a file has appeared or changed, which somebody writes to give notice
// (--preempt-file). The kernel's own word (inotify) would not tell what other hosts do on a shared
// file system. Loop's thread; owned by Agent.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "agent/core/clock.h"
#include "base/alarm.h"
#include "base/loop.h"

namespace ddprun::agent {

class NoticeLook {
 public:
  // `noticed` is called once. A file that is there now, and stays as it is, is no notice. It may be
  // of a job before. An empty path: nothing is done.
  NoticeLook(asio::io_context& loop, std::string path, std::function<void()> noticed,
             std::chrono::milliseconds every = std::chrono::seconds(1));
  NoticeLook(const NoticeLook&) = delete;
  NoticeLook& operator=(const NoticeLook&) = delete;
  NoticeLook(NoticeLook&&) = delete;
  NoticeLook& operator=(NoticeLook&&) = delete;
  ~NoticeLook() = default;

  void begin();
  void end() { alarm_.set(Time::max()); }

 private:
  struct Facts {
    std::uint64_t inode = 0;
    std::int64_t size = 0;
    std::int64_t changed_ns = 0;
    bool operator==(const Facts&) const = default;
  };

  std::optional<Facts> facts() const;
  void look();

  const std::string path_;
  const std::function<void()> noticed_;
  const std::chrono::milliseconds every_;
  const std::optional<Facts> before_;  // nothing: it was not there
  Alarm alarm_;
};

}  // namespace ddprun::agent
