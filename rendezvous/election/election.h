// This process' part in an election: Leadership with a clock, a timer, etcd and a network. It
// decides nothing itself. Agents elect the leader of their job; it writes the record of the job for
// the agent that leads. Daemons elect the one of them that leads all jobs, and JobRecordStore
// writes the records.
//
// On the loop's thread only. Owned by ElectedSession (agent/network), or by Group (daemon).
#pragma once

#include <boost/asio/ip/tcp.hpp>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "base/alarm.h"
#include "base/loop.h"
#include "base/result.h"
#include "base/wait_schedule.h"
#include "rendezvous/core/rendezvous.h"
#include "rendezvous/election/etcd_client.h"
#include "rendezvous/election/job_keys.h"
#include "rendezvous/election/leadership.h"
#include "rendezvous/grpc/liveness.h"
#include "rendezvous/grpc/loop_gate.h"

namespace ddprun::rendezvous {

// etcd gives the leader key away so long after its holder's last sign of life. It lengthens shorter
// ones to 2 s. A dead process is noticed without it, so it outlasts a firewall that is loaded anew.
inline constexpr std::chrono::seconds kLeaderLease{5};
inline constexpr std::chrono::milliseconds kLeaderMargin{500};
// The record must outlive the leader until the next one has read it. That is so long after the last
// lease of a node has ended. A job that died as a whole is forgotten then, and the next one of its
// id begins anew.
inline constexpr std::chrono::seconds kRecordLease{20};
// The time between two warnings about etcd: that it does not answer, or gives or takes no records.
inline constexpr std::chrono::seconds kProblemEvery{10};
// No answer to a connect for so long: the leader is silent.
inline constexpr std::chrono::milliseconds kProbeLimit{1000};

struct ElectionOptions {
  EtcdOptions etcd;
  std::string prefix = "/ddprun";  // of the job's keys
  std::string rdzv_id = "none";    // or the group of daemons
  std::string hostname;            // of this node, for the record
  std::chrono::milliseconds contact_limit{60'000};
  std::chrono::milliseconds search_limit{600'000};
  bool follows_only = false;  // as in LeadershipRules
  std::chrono::milliseconds look_while_following{0};
  std::chrono::milliseconds node_lease{0};  // the record outlives it
  // For daemons only.
  bool retakes = false;
  std::chrono::seconds lease = kLeaderLease;
  std::chrono::milliseconds margin = kLeaderMargin;
  // The address at which this process listens, also while it does not lead. A leader key that names
  // it is of its own past, or of a process before it: nobody leads.
  std::optional<Leader> listens_at{};
};

class Election {
 public:
  // Each may call the functions below.
  struct Handlers {
    // Returns the address at which this process will serve the rendezvous. It must listen there
    // already: a refused connection means that it is dead.
    std::function<Result<Leader>()> own_address;
    // This process leads from now on, and the job goes on from the record.
    std::function<void(JobRecord)> lead;
    // Another one leads. Open a session there; the one before is over.
    std::function<void(const Leader&)> follow;
    // This process leads no more: end its sessions, stop listening, then call leader_lost().
    // `was_suspended`: as in StepDown.
    std::function<void(const std::string& why, bool was_suspended)> lost_leadership;
    // Whether a round of this node goes on: it may lead a job that etcd has forgotten.
    std::function<bool()> has_round = [] { return false; };
    // A job that this node had a part in is over.
    std::function<void(bool succeeded)> job_over;
    // There is no way to a leader. The last call.
    std::function<void(const Error&)> failed;
    // This process leads until then, unless etcd confirms its lease before; may be empty.
    std::function<void(Time)> leads_until{};
  };

  Election(asio::io_context& loop, ElectionOptions options, Handlers handlers);
  Election(const Election&) = delete;
  Election& operator=(const Election&) = delete;
  ~Election();

  void start();
  // The leader let this node in.
  void followed();
  // The session with the leader ended, or our own leadership. `was_closed`: as in SessionLost.
  void leader_lost(bool was_closed = false);
  // Returns whether the nodes may be given leases: while this process leads beyond doubt.
  bool may_grant() const { return leadership_.leads_at(std::chrono::steady_clock::now()); }
  // Says why etcd did not answer. Empty if it did.
  const std::string& problem() const { return problem_; }
  // Returns why no leader is followed, and until when one is looked for.
  UnreachedHost unreached() const;
  // This node leaves the job: it looks for a leader still, and does not become it.
  void withdraw() { leadership_.withdraw(); }
  // A round was published to this node: where the record is gone, so is the job.
  void round_begins() { had_round_ = true; }
  // While this process leads: writes the record, if it leads still. `recorded` is called when that
  // is done; otherwise `lost_leadership` is.
  void publish(JobRecord record, std::function<void()> recorded);
  // ---- for who keeps records of its own (JobRecordStore) ----
  EtcdClient& etcd() { return etcd_; }
  // While this process leads: of its key; each transaction compares it.
  std::int64_t revision() const { return leadership_.revision(); }
  // Such a transaction found another leader: is looked at, and then `lost_leadership` is called.
  void doubt() { perform(leadership_.key_changed(std::chrono::steady_clock::now())); }
  // No agent is elected here any more. If this process leads, it gives the key up, so that another
  // takes it at once. `done` is called when that is so, or cannot be.
  void resign(std::function<void()> done);

  // The job is over here: nobody is elected any more. If this process leads, the record says how it
  // ended, and the key is given up.
  void job_ended(bool succeeded);

 private:
  using SharedGate = std::shared_ptr<LoopGate<Election>>;
  static asio::awaitable<void> probe(asio::io_context& loop, SharedGate gate, ProbeLeader action,
                                     asio::ip::tcp::endpoint to);
  void taken(const ProbeLeader& action, asio::ip::tcp::socket socket);

  LeaderRefusal judge(const asio::ip::tcp::endpoint& leader) const;

  void perform(const LeadershipActions& actions);
  void perform(const ReadKey& action);
  void perform(const GrantLease& action);
  void perform(const TakeKey& action);
  void perform(const ProbeLeader& action);
  void perform(const Follow& action);
  void perform(const WatchKey& action);
  void perform(const StopWatching& action);
  void perform(const Lead& action);
  void perform(const RenewLease& action);
  void perform(const WriteRecord& action);
  void perform(const RecordWritten& action);
  void perform(const ReleaseKey& action);
  void perform(const StepDown& action);
  void perform(const GiveUp& action);

  void transact(Ticket ticket, v3::TxnRequest request,
                std::function<void(const TransactionAnswer&)> answer);
  void write_record(const WriteRecord& action);
  void record_answered(const WriteRecord& action, const KeyHolder& written,
                       const TransactionAnswer& answer);
  void etcd_failed(Ticket ticket, const Error& error);
  bool is_over();
  std::chrono::seconds record_lease() const;
  void pass_by(const ProbeLeader& action, const Leader& leader);
  void key_seen(const std::optional<KeyHolder>& holder);
  void fail(const Error& error);
  void tell_lease();

  asio::io_context& loop_;
  const ElectionOptions options_;
  const Handlers handlers_;
  const JobKeys keys_;
  SharedGate gate_;
  Leadership leadership_;
  Alarm alarm_;
  EtcdClient etcd_;
  LivenessConnections liveness_;
  std::optional<KeyHolder> found_;    // the record as etcd had it last
  std::string problem_;               // of the last question to etcd
  WaitSchedule asking_;               // etcd, which does not answer
  std::string leader_problem_;        // why the leader is not followed; empty: there is no such
  std::optional<Time> nobody_since_;  // nobody has the key
  std::string passed_by_;             // the last leader that no other host reaches, as in its key
  bool is_member_ = false;            // a leader let this node in once, or it led
  bool had_round_ = false;
  // ---- while this process leads ----
  LeaseId record_lease_ = 0;  // 0: none yet
  Time renew_record_at_{};
  RecordedJob job_;  // to be written, or written
  std::function<void()> recorded_;
};

}  // namespace ddprun::rendezvous
