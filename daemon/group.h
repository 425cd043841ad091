// This ddprund's part in a group of them: one leads all jobs, the others wait as standbys. They
// elect the leader in etcd (rendezvous/election), which keeps a record of each job that runs. The
// next leader goes on from the records. It knows no job: Daemon does, and owns it. Loop's thread.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "base/loop.h"
#include "base/net/liveness_probe.h"
#include "rendezvous/election/election.h"
#include "rendezvous/election/job_record_store.h"

namespace ddprun::daemon {

struct GroupOptions {
  rendezvous::EtcdOptions etcd;
  std::string prefix = "/ddprun";
  std::string name = "default";
  rendezvous::Leader self;  // where this ddprund serves; it listens there already
};

class Group {
 public:
  // Each may call the functions below.
  struct Handlers {
    // This process leads from now on. The jobs are those of the leader before.
    std::function<void(rendezvous::JobRecordStore::Jobs)> lead;
    // It leads no more: its nodes and jobs are another's.
    std::function<void(const std::string& why)> step_down;
    // etcd refuses us. The last call.
    std::function<void(const Error&)> failed;
  };

  // `loop` must outlive it.
  Group(asio::io_context& loop, const GroupOptions& options, Handlers handlers);
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;
  ~Group() = default;

  // Returns whether this process leads beyond doubt, and knows all jobs.
  bool leads() const { return is_ready_ && election_.may_grant(); }
  // Names the leader, for people, if this process does not lead.
  std::string who_leads() const;

  // While this process leads: as in JobRecordStore.
  void write(const std::string& rdzv_id, rendezvous::RecordedJob job,
             std::function<void()> recorded);
  void forget(const std::string& rdzv_id, std::chrono::milliseconds after);

  // This process leads no more and is not elected again. If it led, another can lead when `done` is
  // called. That is in a moment, also if etcd does not answer.
  void resign(std::function<void()> done);

 private:
  void lead();
  void follow(const rendezvous::Leader& leader);
  void lost_leadership(const std::string& why);
  void refused(const Error& error);

  asio::io_context& loop_;
  const rendezvous::Leader self_;
  const Handlers handlers_;
  rendezvous::Election election_;
  rendezvous::JobRecordStore records_;
  bool is_ready_ = false;
  bool is_refused_ = false;
  std::optional<rendezvous::Leader> leader_;  // another one
  // Held with the leader: it ends with the leader's process.
  std::unique_ptr<LivenessProbe> probe_;
};

}  // namespace ddprun::daemon
