// Serves the rendezvous of many jobs: a Host and a JobControl for each, one Service and one port
// for all. JobTable decides which jobs may be made and which are forgotten. In a group it serves
// while it leads, and goes on with the jobs of the leader before. Loop's thread; owned by main().
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "base/alarm.h"
#include "base/loop.h"
#include "base/rate_limiter.h"
#include "daemon/daemon_options.h"
#include "daemon/daemon_status.h"
#include "daemon/group.h"
#include "daemon/job_table.h"
#include "rendezvous/control/control_service.h"
#include "rendezvous/control/job_control.h"
#include "rendezvous/control/local_operators.h"
#include "rendezvous/grpc/port_demultiplexer.h"
#include "rendezvous/grpc/service.h"
#include "rendezvous/host/host.h"

namespace ddprun::daemon {

class Daemon {
 public:
  // An empty token: nodes of any job are let in, and operators come by this host's own socket.
  // `loop` must outlive it.
  Daemon(asio::io_context& loop, DaemonOptions options, const std::string& token);
  Daemon(const Daemon&) = delete;
  Daemon& operator=(const Daemon&) = delete;
  ~Daemon();

  // Errors: as bind_listener() and rendezvous::check_tls_files().
  Result<void> open();
  std::uint16_t port() const { return port_; }
  // Those that operators see, too. Valid until the loop turns.
  std::vector<ShownJob> shown_jobs() const;
  // Always where there is no group.
  bool leads() const { return turned_away().empty(); }
  // After open(), with options.has_group(): takes part in the election. `failed`: etcd refuses us,
  // and it can go on no more.
  void join_group(rendezvous::EtcdOptions etcd, const std::string& address,
                  std::function<void(const Error&)> failed);
  // The end: with a group, another goes on with the jobs, now or when one comes in time. Otherwise
  // tells every node that the rendezvous ends. `done` is called when it may be destroyed.
  void stop(std::function<void()> done);

 private:
  struct Job {
    std::unique_ptr<rendezvous::Host> host;
    std::unique_ptr<rendezvous::JobControl> control;
    rendezvous::RecordedJob recorded{};  // as the next leader is to find it
    bool is_recorded = false;            // this one, and not the one before with its id
    bool is_compact = false;             // it has ended, and was moved to new memory
  };
  using HostOrLastWord = std::variant<rendezvous::Host*, rendezvous::HostMessage>;

  HostOrLastWord host_of(const std::string& rdzv_id, const rendezvous::NodeSpec& spec,
                         std::int64_t round);
  std::optional<HostOrLastWord> ended_job(const std::string& rdzv_id, std::int64_t round);
  void make_job(JobNumber number, const std::string& rdzv_id, const rendezvous::NodeSpec& spec);
  void watch(JobNumber number, Job& job);
  void record_in_group(JobNumber number, const std::string& rdzv_id);
  void record(JobNumber number, const std::string& rdzv_id, std::function<void()> recorded);
  rendezvous::RoundPolicy policy_of(const rendezvous::NodeSpec& spec) const;
  std::string turned_away() const;
  void lead(rendezvous::JobRecordStore::Jobs jobs);
  void step_down(const std::string& why);
  void forget_inherited();
  void look();
  void compact();
  void give_memory_back();
  std::vector<rendezvous::JobControl*> jobs() const;
  std::optional<rendezvous::InheritedJob> inherited(const std::string& rdzv_id) const;

  asio::io_context& loop_;
  const DaemonOptions options_;
  const std::string key_;  // of the token
  std::uint16_t port_ = 0;
  bool is_stopped_ = false;
  std::unique_ptr<Group> group_;  // null: none, or its election has not begun
  JobTable table_;
  Alarm alarm_;
  Alarm trim_alarm_;  // some time after a job's last node went
  Time left_alone_at_{};
  std::map<JobNumber, Job> jobs_;
  // The jobs of the leader before that no node has come back to, and those that ended under it.
  rendezvous::JobRecordStore::Jobs inherited_;
  int inherited_nodes_ = 0;  // of all jobs of the leader before, spares too
  Alarm inherited_alarm_;
  RateLimiter refusals_;  // that are told of: peers can cause them
  std::unique_ptr<rendezvous::ControlService> operators_;
  std::unique_ptr<rendezvous::LocalOperators> local_operators_;
  std::unique_ptr<rendezvous::Service> service_;  // before the jobs, whose sessions it has
  std::unique_ptr<rendezvous::PortDemultiplexer> demultiplexer_;
};

}  // namespace ddprun::daemon
