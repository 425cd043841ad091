// The few lines ddprun says of its own accord: where the job runs, where its logs are, that it
// waits, that it restarts. Never more than kOwnLines, none with --quiet; all but restarts only on a
// terminal, since a batch job's log belongs to its workers. Pure.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <utility>

#include "agent/core/config.h"
#include "rendezvous/rendezvous.h"

namespace ddprun::agent {

// Further restarts are only logged, at LOGLEVEL=INFO.
inline constexpr int kOwnLines = 5;

class Notices {
 public:
  // `called` is the name that the lines begin with.
  Notices(std::string called, bool quiet, bool terminal)
      : called_(std::move(called)), quiet_(quiet), terminal_(terminal) {}

  // What to write on stderr, newline included; empty: nothing.
  std::string started(const rendezvous::Round& round, const std::string& log_folder);
  std::string restarting(const rendezvous::Failure& cause, int restarts, const RestartPlan& plan);
  // Written over itself (\r, no newline) while nodes are awaited. `where` is the endpoint.
  std::string waiting(const std::string& where, std::chrono::seconds waited,
                      std::chrono::seconds limit);
  // Ends the line of waiting(), if one was written.
  std::string waited();

  bool shows_waiting() const { return terminal_ && !quiet_; }

 private:
  std::string line(const std::string& text);

  std::string called_;
  bool quiet_;
  bool terminal_;
  bool waiting_ = false;
  bool told_start_ = false;
  int lines_ = 0;
};

}  // namespace ddprun::agent
