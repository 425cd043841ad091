#include "tests/sim/preemption_sim.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <csignal>
#include <utility>

namespace ddprun::sim {

using rendezvous::Announcement;
using rendezvous::Notice;
using rendezvous::SessionId;
using rendezvous::StepOrder;
using rendezvous::StepStage;

PreemptionSim::PreemptionSim(unsigned seed) : random_(seed) {
  nodes_ = 1 + static_cast<int>(random_() % 4);
  is_synchronous_ = chance(70);
  step_us_ = chance(50) ? 500 : 50'000;
  delay_us_ = chance(50) ? 2'000 : 40'000;
  loss_percent_ = chance(15) ? 20 : 0;
  last_step_ = 10'000'000;
  membership_.emplace(rendezvous::RoundPolicy{.min_nodes = nodes_, .max_nodes = nodes_});
  for (int node = 0; node < nodes_; ++node) {
    rendezvous::NodeSpec spec{.node_id = fmt::format("n{}", node),
                              .hostname = fmt::format("h{}", node)};
    spec.takes_step_orders = true;
    membership_->joined(static_cast<SessionId>(node), spec, {"10.0.0.1"}, now_);
    for (unsigned rank = 0; rank <= random_() % 3; ++rank) ranks_.push_back({.node = node});
  }
}

PreemptionSim::Time PreemptionSim::later(int most_us) {
  return now_ + std::chrono::microseconds(1 + random_() % static_cast<unsigned>(most_us));
}

void PreemptionSim::send(const std::optional<Announcement>& announcement) {
  set_timer();
  if (!announcement) return;
  const auto order = std::get<StepOrder>(announcement->message);
  if (order.stage == StepStage::kHold) ++holds_;
  if (order.stage == StepStage::kTake) taken_.push_back(order);
  for (const SessionId to : announcement->to) {
    const int node = static_cast<int>(to);
    Time& last = last_down_[node];
    last = std::max(last, later(delay_us_));
    // The last word is not lost: the connection would be.
    if (order.stage != StepStage::kTake && chance(loss_percent_)) continue;
    at(last, [this, node, order] { obey(node, order); });
  }
}

// As agent/preemption does.
void PreemptionSim::obey(int node, const StepOrder& order) {
  if (order.stage != StepStage::kAsk) {
    for (Rank& rank : ranks_) {
      if (rank.node != node) continue;
      rank.order = {.number = static_cast<std::uint32_t>(order.number),
                    .is_taken = order.stage == StepStage::kTake,
                    .is_end = order.is_end,
                    .signo = order.signo};
      rank.order_step = static_cast<std::uint64_t>(order.step);
      // Without a step the agent signals its workers.
      const bool is_at_once = rank.order.is_taken && order.step == 0;
      if (std::exchange(rank.waits, false) || is_at_once) look_at_page(rank);
    }
  }
  if (order.stage == StepStage::kAsk) answer_when_free(node, order.number);
  if (order.stage == StepStage::kHold) answer(node, order.number);
}

void PreemptionSim::answer_when_free(int node, std::int64_t number) {
  const bool is_free = std::ranges::none_of(ranks_, [node](const Rank& rank) {
    return rank.node == node && rank.order.is_taken && rank.taken != rank.order.number;
  });
  if (is_free) return answer(node, number);
  at(now_ + std::chrono::milliseconds(20),
     [this, node, number] { answer_when_free(node, number); });
}

void PreemptionSim::answer(int node, std::int64_t number) {
  std::uint64_t most = 0;
  for (const Rank& rank : ranks_)
    if (rank.node == node) most = std::max(most, rank.steps);
  at(later(delay_us_), [this, node, number, most] {
    send(preemption_.answered(static_cast<SessionId>(node),
                              {.round = membership_->round_number(),
                               .number = number,
                               .steps = static_cast<std::int64_t>(most)},
                              now_));
  });
}

bool PreemptionSim::may_begin(const Rank& rank) const {
  if (rank.is_busy || rank.waits || rank.has_ended || rank.steps >= last_step_) return false;
  return !is_synchronous_ || std::ranges::all_of(ranks_, [&rank](const Rank& other) {
    return other.steps >= rank.steps;
  });
}

void PreemptionSim::begin_step(Rank& rank) {
  if (!may_begin(rank)) return;
  rank.is_busy = true;
  at(later(step_us_), [this, &rank] { step_done(rank); });
}

void PreemptionSim::step_done(Rank& rank) {
  rank.is_busy = false;
  ++rank.steps;
  look_at_page(rank);
  for (Rank& other : ranks_) begin_step(other);
}

void PreemptionSim::look_at_page(Rank& rank) {
  switch (after_step(rank.order, rank.order_step, rank.steps, rank.taken)) {
    case AfterStep::kGoOn:
      break;
    case AfterStep::kWait:
      rank.waits = true;
      break;
    case AfterStep::kTake:
      rank.taken = rank.order.number;
      rank.saved_after.push_back(rank.steps);
      rank.has_ended = rank.order.is_end;
      break;
  }
  begin_step(rank);
}

void PreemptionSim::set_timer() {
  const Time due = preemption_.look_again_at();
  if (due == Time::max()) return;
  at(due, [this] { send(preemption_.tick(now_)); });
}

void PreemptionSim::run() {
  ASSERT_EQ(membership_->phase(), rendezvous::Membership::Phase::kRunning);
  for (Rank& rank : ranks_) begin_step(rank);
  if (chance(30))
    at(later(300'000), [this] {
      send(preemption_.wanted({.signo = SIGUSR1, .is_end = false}, *membership_, now_));
    });
  const int notices = 1 + static_cast<int>(random_() % 3);
  for (int count = 0; count < notices; ++count) {
    const auto node = static_cast<SessionId>(random_() % static_cast<unsigned>(nodes_));
    at(later(400'000), [this, node] {
      const Notice notice{.round = membership_->round_number(),
                          .signo = SIGTERM,
                          .deadline = std::chrono::seconds(30)};
      send(preemption_.noticed(node, notice, *membership_, now_));
    });
  }
  const Time limit = now_ + std::chrono::seconds(30);
  while (!events_.empty() && events_.begin()->first < limit) {
    const auto next = events_.begin();
    now_ = next->first;
    const auto what = std::move(next->second);
    events_.erase(next);
    what();
  }
  check();
}

// All that was agreed on was done by all ranks, after that step and no other one.
void PreemptionSim::check() const {
  ASSERT_FALSE(taken_.empty()) << "more time was needed, or nobody was told";
  EXPECT_TRUE(taken_.back().is_end) << "the job was not told to end";
  for (const Rank& rank : ranks_) {
    EXPECT_FALSE(rank.waits) << "a worker waits for ever";
    EXPECT_TRUE(rank.has_ended) << "a worker goes on";
    ASSERT_EQ(rank.saved_after.size(), taken_.size()) << "a worker did not save each time";
    for (std::size_t time = 0; time < taken_.size(); ++time) {
      if (taken_[time].step == 0) continue;
      EXPECT_EQ(rank.saved_after[time], static_cast<std::uint64_t>(taken_[time].step))
          << "a worker saved after another step";
    }
  }
}

}  // namespace ddprun::sim
