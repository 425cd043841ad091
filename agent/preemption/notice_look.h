// Looks each second whether a file has appeared or changed, which somebody writes to give notice
// (--preempt-file). The kernel's own word (inotify) would not tell what other hosts do on a shared
// file system. If that does not answer, nobody waits for it, and one line says so. Loop's thread;
// owned by Agent.
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>

#include "agent/core/clock.h"
#include "base/alarm.h"
#include "base/file_look.h"
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
  bool is_notice(const FileContent& found);
  void look();
  void tell();

  const std::string path_;
  const std::function<void()> noticed_;
  const std::chrono::milliseconds every_;
  FileLook file_;
  Time asked_ = now();                 // when the look began that is not over
  std::optional<FileContent> before_;  // of the first look
  bool has_warned_ = false;
  Alarm alarm_;
};

}  // namespace ddprun::agent
