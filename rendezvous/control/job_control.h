// Shows one job to operators and does what they want. It has a Host, the log of its incidents, and
// those who wait for the job's end. Loop's thread. The owner of the Host owns it, and the Host must
// outlive it.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "rendezvous/control/job_snapshot.h"
#include "rendezvous/host/host.h"

namespace ddprun::rendezvous {

class JobControl {
 public:
  // How the job ended.
  struct End {
    bool succeeded = false;
    std::string text;
  };
  using Waiter = std::function<void(const End&)>;

  // Takes Host::watch, Host::on_outcome and Host::on_verdict.
  JobControl(Host& host, std::string rdzv_id);
  // Keeps the facts of `finished`, a job that has ended, in memory of its own. No caller may wait
  // for it.
  JobControl(Host& host, const JobControl& finished);
  JobControl(const JobControl&) = delete;
  JobControl& operator=(const JobControl&) = delete;
  ~JobControl();

  const std::string& rdzv_id() const { return rdzv_id_; }
  JobSnapshot status() const;

  // As in operator_verbs.h; each returns one line that says what was done. Also kRejected: the node
  // that hosts the rendezvous cannot be drained, since the job would end with it.
  Result<std::string> drain(const std::string& node, std::chrono::milliseconds deadline);
  Result<std::string> forgive(const std::string& node);
  Result<std::string> resize(int min_nodes, int max_nodes);
  Result<std::string> stop(const std::string& by);
  // All ranks save after one step, and go on. A program hears of it if it asks for that.
  Result<std::string> save_checkpoint();
  // Ends the job, which failed for this reason.
  void give_up(const std::string& reason);
  // Called when the job has ended. The next leader may not know it yet, where there may be one. It
  // must not call this or the host.
  std::function<void()> at_end;
  // Calls `waiter` once: when the nodes have been told that the job has ended, maybe now. It must
  // not call this or the host. Not called if this is destroyed before, or once `is_gone` says that
  // nobody listens any more (empty: never).
  void wait(Waiter waiter, std::function<bool()> is_gone = {});
  std::size_t waiters() const { return waiters_.size(); }

 private:
  struct Waiting {
    Waiter waiter;
    std::function<bool()> is_gone;
  };

  template <typename Verb>
  Result<std::string> obey(Verb verb, std::string done);
  void happened(const Outcome& outcome);
  void on_outcome(const Outcome& outcome);

  Host& host_;
  const std::string rdzv_id_;
  JobEventLog log_;
  std::vector<Waiting> waiters_;
  std::optional<End> end_;  // the nodes were told
};

}  // namespace ddprun::rendezvous
