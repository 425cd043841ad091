// The few lines that ddprun prints without being asked. They say where the job and its logs are,
// that it waits for nodes, that it restarts. With --quiet there are none. If stderr is no terminal,
// only restarts are told, because the log of a batch job belongs to its workers. Errors and the
// failure report are not notices. Notices makes text and writes nothing. Pure. Owned by Reporter.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "agent/core/config.h"
#include "rendezvous/core/rendezvous.h"

namespace ddprun::agent {

// The most lines of one job; the line of waiting() does not count, nor does that of cost(). Further
// restarts are only logged, at LOGLEVEL=INFO.
inline constexpr int kOwnLines = 5;

// The obstacle between this node and a host that it waits for.
struct NoHost {
  std::optional<std::chrono::seconds> gives_up_in;  // nothing: a host has let it in
  std::string why;                                  // the last try failed; empty: not known
};

class Notices {
 public:
  // `called` is the name that the lines begin with. `terminal`: whether stderr is one.
  Notices(std::string called, bool quiet, bool terminal)
      : called_(std::move(called)), quiet_(quiet), terminal_(terminal) {}

  // These return what to write on stderr, newline included. If it is empty, write nothing.
  //
  // The job starts; says so once, for the first attempt only. An empty `log_folder` is not named.
  std::string started(const rendezvous::Round& round, const std::string& log_folder);
  // `restarts`: restarts so far, this one included.
  std::string restarting(const rendezvous::Failure& cause, int restarts, const RestartPlan& plan);
  // Nodes came or left: the workers start again, and no restart is spent.
  std::string resizing(const rendezvous::Failure& cause);
  // Returns the line about the cost of that incident, `stages`. Empty too if the line before it was
  // not shown: nobody could tell what it speaks of.
  std::string cost(const std::string& stages) const;
  // The line that is shown while nodes are awaited. It starts with \r and has no newline, so each
  // one is written over the last. `where` is the endpoint. Without a `wait_status` nothing is known
  // of the other nodes yet. Call waited() before anything else is written.
  std::string waiting(const std::string& where, std::chrono::seconds waited,
                      const std::optional<rendezvous::WaitStatus>& wait_status,
                      const NoHost& no_host = {});
  // The lines of a wait that goes on, for a log. Empty with --quiet. For nodes:
  std::string still_waiting(const std::string& where, std::chrono::seconds waited,
                            const std::optional<rendezvous::WaitStatus>& wait_status,
                            const NoHost& no_host) const;
  // The text for anything else is "waiting for 7 s: " and `what`.
  std::string still_waiting(const std::string& what, std::chrono::seconds waited) const;
  // Ranks of this node have ended with 0, the last `ago`, and others still run. `still`: those.
  std::string left_alone(const std::vector<int>& ended, const std::vector<int>& still,
                         std::chrono::seconds ago) const;
  // Returns the newline that ends the line of waiting(), if one was shown.
  std::string waited();

  // Returns whether waiting() shows anything: no timer is needed if not.
  bool shows_waiting() const { return terminal_ && !quiet_; }

 private:
  std::string line(const std::string& text);
  std::string incident(const std::string& text);

  std::string called_;
  bool quiet_;
  bool terminal_;
  bool waiting_ = false;
  bool shown_start_ = false;
  bool shown_incident_ = false;  // the last one
  int lines_ = 0;
};

}  // namespace ddprun::agent
