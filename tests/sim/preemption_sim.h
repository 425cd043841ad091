// A round in virtual time whose ranks must save after the same step. It has the real Preemption,
// and the rule of the worker's page. Between them are nodes, on a network that delays and loses
// messages. All from one seed.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <random>
#include <vector>

#include "proto/worker_page.h"
#include "rendezvous/core/membership.h"
#include "rendezvous/core/preemption.h"

namespace ddprun::sim {

class PreemptionSim {
 public:
  explicit PreemptionSim(unsigned seed);
  // Runs until nothing happens any more, and fails the test for each broken promise.
  void run();
  // How many steps were held in vain, and one more.
  int rounds() const { return holds_; }

 private:
  using Time = rendezvous::Time;
  struct Rank {
    int node = 0;
    std::uint64_t steps = 0;
    PageOrder order{};
    std::uint64_t order_step = 0;
    std::uint64_t taken = 0;
    bool waits = false;    // for another order
    bool is_busy = false;  // a step is being done
    bool has_ended = false;
    std::vector<std::uint64_t> saved_after{};
  };

  void at(Time when, std::function<void()> what) { events_.emplace(when, std::move(what)); }
  Time later(int most_us);
  bool chance(int percent) { return static_cast<int>(random_() % 100) < percent; }
  void send(const std::optional<rendezvous::Announcement>& announcement);
  void obey(int node, const rendezvous::StepOrder& order);
  void answer(int node, std::int64_t number);
  void answer_when_free(int node, std::int64_t number);
  void begin_step(Rank& rank);
  void step_done(Rank& rank);
  void look_at_page(Rank& rank);
  void set_timer();
  bool may_begin(const Rank& rank) const;
  void check() const;

  std::mt19937 random_;
  Time now_{std::chrono::hours(1)};
  std::multimap<Time, std::function<void()>> events_;
  std::optional<rendezvous::Membership> membership_;
  rendezvous::Preemption preemption_;
  bool is_synchronous_ = false;  // no rank can do a step before all have done the one before
  int step_us_ = 0;
  int delay_us_ = 0;
  int loss_percent_ = 0;
  int nodes_ = 0;
  std::uint64_t last_step_ = 0;  // of the program
  std::vector<Rank> ranks_;
  std::map<int, Time> last_down_;  // messages to a node stay in their order
  std::vector<rendezvous::StepOrder> taken_;
  int holds_ = 0;
};

}  // namespace ddprun::sim
