// A job whose leader is elected in etcd, from one seed. Some processes may lead. Nodes keep their
// workers while one leader follows another. All of them have faults. These hold beside the promises
// of every job. Workers of two rounds never run at once, whoever leads. A round's number only
// grows, and is in etcd before a node is told of it. If only leaders die, no worker is ever
// restarted.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tests/sim/sim_etcd.h"
#include "tests/sim/sim_leader.h"
#include "tests/sim/sim_node.h"
#include "tests/sim/virtual_time.h"

namespace ddprun::sim {

class Takeover {
 public:
  explicit Takeover(unsigned seed);

  // Runs to the end. An error is a failure of the running test.
  void run();

  std::int64_t rounds() const { return last_round_; }

 private:
  static JobPlan make_plan(VirtualTime& time, bool is_calm);
  bool faulty() const { return time_.now() < faults_end_; }
  void add_leader();
  void add_node();
  void plan_faults(SimLeader& leader);
  void plan_faults(SimNode& node);
  void plan_early_faults(SimNode& node);
  void in_time(std::function<void()> act);
  void kill(SimLeader& leader);
  bool dies_before_telling();
  milliseconds record_is_sent(SimLeader& leader);
  void in_doubt();
  void find_host(SimNode& node, const std::function<void(SimHost*)>& answer);
  void tells(std::int64_t round);
  void check_start(std::int64_t round) const;
  void fill_up();
  int live_leaders() const;
  int live_nodes() const;
  bool is_over() const;
  void check_end() const;
  std::string state() const;

  VirtualTime time_;
  const bool is_calm_;  // leaders die, and nothing else happens
  const JobPlan plan_;
  const Time began_;
  const Time faults_end_;
  const int most_delay_ms_;
  const bool works_long_;
  const bool is_etcd_slow_;  // so that a leader may lose its key without a fault
  const bool are_daemons_;   // who may lead
  const bool is_refusal_doubted_;
  SimEtcd etcd_;
  std::vector<std::unique_ptr<SimLeader>> leaders_;
  std::vector<std::unique_ptr<SimNode>> nodes_;
  SessionId last_session_ = 0;
  std::int64_t last_round_ = 0;
  bool is_in_doubt_ = false;
  int rounds_ = 0;  // so many rounds
};

}  // namespace ddprun::sim
