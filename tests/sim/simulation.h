// A whole job from one seed. It has a host, workers, and nodes that come, crash, are cut off,
// stall, leave and are replaced or not. After every step the promises of a job hold. When the
// faults stop, a job that has budget and enough nodes runs to its good end within bounded time.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tests/sim/sim_host.h"
#include "tests/sim/sim_node.h"
#include "tests/sim/virtual_time.h"

namespace ddprun::sim {

class Simulation {
 public:
  explicit Simulation(unsigned seed);

  // Runs to the end. An error is a failure of the running test.
  void run();

  std::int64_t rounds() const { return host_.last_round(); }

 private:
  static JobPlan make_plan(VirtualTime& time, bool is_calm);
  bool faulty() const { return time_.now() < faults_end_; }
  void add_node();
  void plan_faults(SimNode& node);
  void plan_suspensions();
  void suspend_host(milliseconds length);
  void replace_later();
  void check_start(std::int64_t round);
  void when_host_awake(std::function<void()> act);
  // When the faults stop, somebody starts what is missing.
  void fill_up();
  int live_nodes() const;
  bool all_over() const;
  void check_end() const;
  std::string state() const;

  VirtualTime time_;
  const bool
      is_calm_;  // nothing happens but that all of it stands still: no worker is started anew
  const JobPlan plan_;
  const Time began_;
  const Time faults_end_;
  const int most_delay_ms_;
  const bool works_long_;  // the workers succeed only after the faults; else at any time
  const int wanted_;       // so many nodes somebody keeps running when the faults have stopped
  Time host_awake_at_{};
  std::int64_t last_started_ = 0;
  SimHost host_;
  std::vector<std::unique_ptr<SimNode>> nodes_;
  SessionId last_session_ = 0;
};

// When `round` starts no worker of another one lives; `state` is for the failure's message.
void expect_no_older_worker(const std::vector<std::unique_ptr<SimNode>>& nodes, std::int64_t round,
                            const std::function<std::string()>& state);

}  // namespace ddprun::sim
