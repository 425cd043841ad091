// Reads the hashes that this node's workers leave of their replicas (--check-replicas), and tells
// them to the rendezvous. It answers the rendezvous's questions about single tensors. Nothing here
// touches a worker. Loop's thread; owned by Agent.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "agent/core/clock.h"
#include "agent/replicas/replica_file.h"
#include "agent/replicas/replica_reports.h"
#include "base/alarm.h"
#include "base/loop.h"
#include "rendezvous/core/rendezvous.h"

namespace ddprun::agent {

class ReplicaWatch {
 public:
  // How often the workers' files are read.
  static constexpr std::chrono::seconds kEvery{2};
  // A worker has so many files, as in replicas.py.
  static constexpr int kMostOptimizers = 4;

  struct Attempt {
    std::int64_t round = 0;
    int workers = 0;
    int first_rank = 0;  // of local rank 0
  };
  struct Handlers {
    std::function<rendezvous::Session*()> session;
    std::function<std::string()> folder;  // the job's own, where workers write
    std::function<void(const rendezvous::ReplicaVerdict&)> differ;
    // People should hear why this rank is not compared, or not in full. Once for each reason.
    std::function<void(int rank, const std::string& why)> not_compared;
  };

  ReplicaWatch(asio::io_context& loop, Handlers handlers);
  ReplicaWatch(const ReplicaWatch&) = delete;
  ReplicaWatch& operator=(const ReplicaWatch&) = delete;
  ReplicaWatch(ReplicaWatch&&) = delete;
  ReplicaWatch& operator=(ReplicaWatch&&) = delete;
  ~ReplicaWatch() = default;

  // The workers of a round have started.
  void attempt_begins(const Attempt& attempt);
  // They are gone, and their files are removed.
  void attempt_ends();

  // Takes ReplicaQuestion and ReplicaVerdict of this round, and nothing else.
  void hear(const rendezvous::HostMessage& message);

  // Writes each worker's hashes of that step into `folder`, which is made if it can be.
  void keep_details(const std::string& folder, const rendezvous::ReplicaVerdict& verdict) const;

 private:
  void look();
  void look_for_reasons();
  void answer(const rendezvous::ReplicaQuestion& question);
  std::string path_of(int local_rank, const std::string& what) const;

  const Handlers handlers_;
  std::optional<Attempt> attempt_;               // unset: no attempt runs
  std::vector<std::vector<std::int64_t>> told_;  // the last step, by local rank and optimizer
  std::set<std::string> reasons_;
  Alarm alarm_;
};

}  // namespace ddprun::agent
