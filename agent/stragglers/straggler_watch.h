// Reads the samples that this node's workers leave of their steps. It tells the rendezvous, which
// finds the ranks that are slower than the others (rendezvous/core/stragglers.h). Nothing here
// touches a worker. Loop's thread; owned by Agent.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "agent/core/clock.h"
#include "agent/stragglers/host_load.h"
#include "base/alarm.h"
#include "base/loop.h"
#include "base/result.h"
#include "rendezvous/core/rendezvous.h"

namespace ddprun::agent {

// The environment's variable with the seconds between two samples of a worker. The workers' hook
// reads it, too. 0: there are none.
inline constexpr const char* kStragglerWindowVariable = "DDPRUN_STRAGGLER_WINDOW";
inline constexpr std::chrono::seconds kStragglerWindow{20};
inline constexpr std::chrono::seconds kLongestStragglerWindow{3600};

// An empty text is kStragglerWindow. Errors (kInvalidArgument) name the variable, and the range.
Result<std::chrono::seconds> parse_straggler_window(const std::string& text);

class StragglerWatch {
 public:
  struct Attempt {
    std::int64_t round = 0;
    int workers = 0;
    int first_rank = 0;  // of local rank 0
  };
  struct Handlers {
    std::function<rendezvous::Session*()> session;
    std::function<std::string()> folder;                     // the job's own, where workers write
    std::function<std::chrono::milliseconds()> workers_cpu;  // CPU time of all workers so far
    std::function<void(const rendezvous::StragglerVerdict&)> are_slow;
  };

  StragglerWatch(asio::io_context& loop, Handlers handlers);
  StragglerWatch(const StragglerWatch&) = delete;
  StragglerWatch& operator=(const StragglerWatch&) = delete;
  StragglerWatch(StragglerWatch&&) = delete;
  StragglerWatch& operator=(StragglerWatch&&) = delete;
  ~StragglerWatch() = default;

  // The workers of a round have started. They leave a sample each `window`.
  void attempt_begins(const Attempt& attempt, std::chrono::seconds window);
  // They are gone, and their files are removed.
  void attempt_ends();

  // Takes StragglerVerdict of this round, and nothing else.
  void hear(const rendezvous::HostMessage& message);

  // The last that a worker has told of its steps; all 0: nothing.
  rendezvous::StepSpread spread_of(int local_rank) const;

 private:
  void plan();
  void look();
  std::string path_of(int local_rank) const;

  const Handlers handlers_;
  std::optional<Attempt> attempt_;  // unset: no attempt runs
  std::chrono::seconds window_{kStragglerWindow};
  std::vector<std::int64_t> told_;  // the number of the last sample, by local rank
  std::vector<rendezvous::StepSpread> spreads_;
  HostLook host_{};  // at the last look
  Alarm alarm_;
};

}  // namespace ddprun::agent
