// A process that may lead a simulated job: the real Leadership, and a host while it leads. It may
// be killed, stand still, or lose its way to etcd. Its clock may run too slow or too fast.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "rendezvous/election/leadership.h"
#include "tests/sim/sim_etcd.h"
#include "tests/sim/sim_host.h"
#include "tests/sim/virtual_time.h"

namespace ddprun::sim {

class SimLeader {
 public:
  struct World {
    VirtualTime& time;
    SimEtcd& etcd;
    const JobPlan& plan;
    int most_delay_ms;
    // Returns the leader that has, or had, this value in the key.
    std::function<SimLeader&(const std::string& value)> holder_of;
    std::function<void(std::int64_t round)> tells;
    // Whether the process dies in the moment in which its record is written, and nobody is told.
    std::function<bool()> dies_before_telling;
    // Its record is on its way from now on, and the network holds it so long.
    std::function<milliseconds(SimLeader&)> record_is_sent;
    bool is_daemon = false;  // it leads by the rules of a group of daemons
    // All are on hosts of their own, and a refusal may be a firewall's.
    bool is_refusal_doubted = false;
    // A session may be reset where its leader dies, and then nothing else tells of the death.
    bool may_die_unseen = false;
  };

  SimLeader(const World& world, std::string name, double clock_rate);

  void start();
  void kill();
  void stall(milliseconds length);
  // No way to etcd.
  void cut(milliseconds length);

  // A firewall refuses for it and resets what is open, and it lives.
  void refuse(milliseconds length);
  // Its node leaves: it must not lead from now on.
  void withdraw();

  bool is_dead() const { return is_dead_; }
  // Returns whether a connection to the address of this value is taken: the process may stand
  // still.
  bool listens(const std::string& value) const { return !is_dead_ && value == own_value(); }
  // The leader took a connection of ours: that it refuses one will mean that it is dead.
  bool has_reached(const SimLeader& leader) const { return reached_ == leader.own_value(); }
  // It has connections to the leader, whose end tells it of a death.
  bool watches(const SimLeader& leader) const { return watched_ == leader.own_value(); }
  SimHost* host() const { return host_; }  // null: it does not lead
  const std::string& name() const { return name_; }

 private:
  static rendezvous::LeadershipRules rules(bool is_daemon);
  // It begins anew when it lost its leadership: who leads no more does not listen any more.
  std::string own_value() const { return name_ + "." + std::to_string(turn_); }
  Time now() const { return clock_.local(world_.time.now()); }
  bool is_refused() const { return world_.time.now() < refused_until_; }
  void check_overtaken(std::int64_t revision) const;
  // Returns whether it may promise a node anything. Then nobody else can lead.
  bool may_grant();
  std::function<void(bool succeeded, std::function<void()> recorded)> record_end();
  bool reaches_etcd() const { return world_.time.now() >= cut_until_; }
  void when_awake(std::function<void()> act);
  SimEtcd::Answered answered(rendezvous::Ticket ticket,
                             std::function<void(const SimEtcd::Answer&)> act);
  void look_again();
  void watch_leader(SimLeader& leader, int turn, int silent_looks);
  void lose(SimLeader& leader);

  void perform(const rendezvous::LeadershipActions& actions);
  void perform(const rendezvous::ReadKey& action);
  void perform(const rendezvous::GrantLease& action);
  void perform(const rendezvous::TakeKey& action);
  void perform(const rendezvous::ProbeLeader& action);
  void perform(const rendezvous::Follow& action);
  void perform(const rendezvous::WatchKey& action);
  void perform(const rendezvous::StopWatching& action);
  void perform(const rendezvous::Lead& action);
  void perform(const rendezvous::RenewLease& action);
  void perform(const rendezvous::WriteRecord& action);
  void perform(const rendezvous::RecordWritten& action);
  void perform(const rendezvous::ReleaseKey& action);
  void perform(const rendezvous::StepDown& action);
  void perform(const rendezvous::GiveUp& action);

  const World world_;
  const std::string name_;
  const Clock clock_;
  rendezvous::Leadership leadership_;
  int turn_ = 0;
  int watch_ = 0;   // of the key; those that were set before do nothing
  int follow_ = 0;  // of a leader
  std::string reached_;
  std::string watched_;
  bool is_dead_ = false;
  bool is_withdrawn_ = false;
  Time awake_at_{};
  Time cut_until_{};
  Time refused_since_{};
  Time refused_until_{};
  bool was_refused_for_long_ = false;
  std::optional<Time> died_leading_;
  Time timer_at_{};
  std::optional<SimEtcd::Record> found_;
  SimEtcd::Record job_;  // to be written
  std::function<void()> recorded_;
  SimHost* host_ = nullptr;
  std::vector<std::unique_ptr<SimHost>> hosts_;  // events that are set outlive them
};

}  // namespace ddprun::sim
