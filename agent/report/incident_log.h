// The incidents that have broken rounds of this job so far, as seen here: how often, why, at what
// cost. For metrics and the status page. Pure. Owned by Reporter.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "agent/core/incident.h"
#include "rendezvous/core/rendezvous.h"

namespace ddprun::agent {

// Why the workers were started anew. kNodeLost: also the node that led the rendezvous.
enum class RestartReason { kWorkerFailed, kNodeLost, kResize };
inline constexpr std::size_t kRestartReasons = 3;
// "worker_failed"
const char* name_of(RestartReason reason);
RestartReason reason_of(const rendezvous::RoundBroken& message);

class IncidentLog {
 public:
  // The newest reasons that are kept.
  static constexpr std::size_t kMostKept = 16;

  struct Entry {
    std::chrono::system_clock::time_point when{};
    std::string text;
  };
  // One part of all incidents.
  struct Stage {
    std::string name;
    std::uint64_t count = 0;
    std::chrono::nanoseconds sum{};
    std::chrono::nanoseconds last{};
  };

  IncidentLog();

  // A round broke, and another one follows.
  void round_broken(const rendezvous::RoundBroken& message,
                    std::chrono::system_clock::time_point when);
  // Stages of an incident are over.
  void took(const std::vector<IncidentStage>& stages);
  // An incident is over whose stages up to "re-formed" were told to took().
  void ended(const Incident& incident);

  // Ranks differ in what should be the same.
  void replicas_differ(const std::string& text, std::chrono::system_clock::time_point when);
  // Ranks are slower than the others.
  void ranks_are_slow(const std::string& text, std::chrono::system_clock::time_point when) {
    add(text, when);
  }
  std::uint64_t replica_differences() const { return replica_differences_; }

  std::uint64_t restarts(RestartReason reason) const {
    return restarts_[static_cast<std::size_t>(reason)];
  }
  // In order of time; all that there can be.
  const std::vector<Stage>& stages() const { return stages_; }
  const std::deque<Entry>& newest_first() const { return entries_; }

 private:
  void add(const std::string& text, std::chrono::system_clock::time_point when);

  std::array<std::uint64_t, kRestartReasons> restarts_{};
  std::uint64_t replica_differences_ = 0;
  std::vector<Stage> stages_;
  std::deque<Entry> entries_;
};

}  // namespace ddprun::agent
