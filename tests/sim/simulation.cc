#include "tests/sim/simulation.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>

namespace ddprun::sim {

using std::chrono::seconds;

namespace {

constexpr seconds kFaults{60};
// From the end of the faults until the job must be over. It has room for the longest waits of a
// round and the work itself. Waits are the last call, the interval between two resizes, a grace.
constexpr seconds kRest{180};
constexpr seconds kJoinTimeout{3600};  // longer than all of it: no round may need it

}  // namespace

JobPlan Simulation::make_plan(VirtualTime& time, bool is_calm) {
  const int unit = time.one_in(5) ? 2 : 1;
  const int max = unit * (1 + time.draw(5));
  const int min = is_calm || time.one_in(2) ? max : unit * (1 + time.draw(max / unit));
  return {.policy = {.min_nodes = min,
                     .max_nodes = max,
                     .settings = {.join_timeout = kJoinTimeout,
                                  .last_call = seconds(1 + time.draw(5)),
                                  .resize_interval = seconds(2 + time.draw(30)),
                                  .node_unit = unit}},
          .budget = time.draw(10),
          .keep_alive = {.interval = seconds(1)}};
}

Simulation::Simulation(unsigned seed)
    : time_(seed),
      is_calm_(time_.one_in(8)),
      plan_(make_plan(time_, is_calm_)),
      began_(time_.now()),
      faults_end_(began_ + kFaults),
      most_delay_ms_(time_.one_in(2) ? 5 : 300),
      works_long_(time_.one_in(2)),
      wanted_(time_.one_in(2) ? plan_.policy.min_nodes : plan_.policy.max_nodes),
      host_(time_, plan_, {}, {Time{}, 1},
            {.when_awake = [this](auto act) { when_host_awake(std::move(act)); }}) {
  plan_suspensions();
  const int nodes = plan_.policy.max_nodes + (is_calm_ ? 0 : time_.draw(3) - time_.draw(2));
  for (int i = 0; i < std::max(nodes, 1); ++i)
    time_.after(time_.up_to(3000), [this] { add_node(); });
  // Somebody who comes to a running job.
  if (!is_calm_ && time_.one_in(2)) time_.after(time_.up_to(40'000), [this] { add_node(); });
  time_.at(faults_end_, [this] { fill_up(); });
}

void Simulation::run() {
  const Time end = faults_end_ + kRest;
  while (!testing::Test::HasFailure() && !(host_.membership().ended() && all_over()))
    if (!time_.step(end)) break;
  check_end();
}

// ---- nodes ----

void Simulation::add_node() {
  if (host_.membership().ended()) return;
  const auto number = nodes_.size() + 1;
  const std::string id = std::to_string(number);
  const auto since_began = std::chrono::duration_cast<milliseconds>(time_.now() - began_);
  NodePlan plan{.spec = {.node_id = id,
                         .hostname = "h" + id,
                         .local_world_size = 1 + time_.draw(3),
                         .store_port = static_cast<std::uint16_t>(number),
                         .max_restarts = plan_.budget},
                .clock_rate = 1 + (time_.draw(21) - 10) / 1000.0,
                .work_least = works_long_ ? kFaults - since_began + seconds(5) : milliseconds(0),
                .most_delay_ms = most_delay_ms_};
  if (time_.one_in(6)) {
    plan.spec.node_rank = time_.draw(plan_.policy.max_nodes + 1);
    plan.spec.rank_is_preferred = true;
  }
  nodes_.push_back(std::make_unique<SimNode>(
      SimNode::World{.time = time_,
                     .find_host = [this](auto answer) { answer(&host_); },
                     .new_session = [this] { return ++last_session_; },
                     .workers_start = [this](std::int64_t round) { check_start(round); },
                     .faulty = [this] { return faulty() && !is_calm_; },
                     .last_round = [this] { return last_started_; }},
      std::move(plan)));
  SimNode& node = *nodes_.back();
  node.start();
  if (faulty() && !is_calm_) plan_faults(node);
}

void Simulation::when_host_awake(std::function<void()> act) {
  if (time_.now() >= host_awake_at_) return act();
  time_.at(host_awake_at_, [this, act = std::move(act)] { when_host_awake(act); });
}

// While it does not run, heartbeats are not answered.
void Simulation::suspend_host(milliseconds length) {
  for (const auto& node : nodes_) node->watch_network();
  host_awake_at_ = std::max(host_awake_at_, time_.now() + length);
}

// A lid is closed, or one machine of the job is paused.
void Simulation::plan_suspensions() {
  if (!is_calm_ && !time_.one_in(3)) return;
  time_.after(milliseconds(5000) + time_.up_to(30'000), [this] {
    const bool is_whole = is_calm_ || time_.one_in(2);
    const auto length = time_.up_to(time_.one_in(2) ? 2000 : 60'000);
    suspend_host(length);
    for (const auto& node : nodes_)
      if (is_whole) node->suspend(length);
  });
}

// One kind of fault for each node: an agent that stalls cannot act on a lease that ends meanwhile.
void Simulation::plan_faults(SimNode& node) {
  const auto in_time = [this](auto act) {
    time_.after(time_.up_to(40'000), [this, act] {
      if (faulty()) act();
    });
  };
  switch (time_.draw(13)) {
    case 0:
    case 1:
      return in_time([this, &node] {
        node.crash(!time_.one_in(3));
        replace_later();
      });
    case 2:
    case 3:
      return in_time([this, &node] {
        const int which = time_.draw(3);
        node.cut(which != 0, which != 1, time_.up_to(time_.one_in(2) ? 1500 : 12'000));
        replace_later();
      });
    case 4:
      return in_time([this, &node] { node.stall(time_.up_to(2000)); });
    case 7:
      return in_time([this, &node] {
        node.suspend(time_.up_to(time_.one_in(2) ? 4000 : 30'000));
        if (time_.one_in(3)) node.cut(true, true, time_.up_to(8000));
      });
    case 5:
      return in_time([&node] { node.leave(); });
    case 6:
      // It may break again while the node comes back.
      return in_time([this, &node] {
        node.reset(!time_.one_in(3));
        for (int again = time_.draw(3); again > 0; --again)
          time_.after(time_.up_to(1000), [this, &node] { node.reset(!time_.one_in(3)); });
      });
    default:
      return;
  }
}

void Simulation::replace_later() {
  if (time_.one_in(3)) return;  // not every lost node is replaced
  time_.after(time_.up_to(8000), [this] { add_node(); });
}

int Simulation::live_nodes() const {
  return static_cast<int>(std::ranges::count_if(
      nodes_, [](const auto& node) { return !node->is_over() && !node->is_leaving(); }));
}

void Simulation::fill_up() {
  // Cut-off nodes may still count as live here and end a moment later.
  for (int missing = wanted_ - live_nodes(); missing > 0; --missing) add_node();
  time_.after(seconds(20), [this] {
    if (!host_.membership().ended()) fill_up();
  });
}

// ---- what must hold ----

void Simulation::check_start(std::int64_t round) {
  last_started_ = std::max(last_started_, round);
  expect_no_older_worker(nodes_, round, [this] { return state(); });
}

bool Simulation::all_over() const {
  return std::ranges::all_of(nodes_, [](const auto& node) { return node->is_over(); });
}

void Simulation::check_end() const {
  if (testing::Test::HasFailure()) return;
  EXPECT_TRUE(host_.membership().ended()) << "the job hangs\n" << state();
  EXPECT_TRUE(all_over()) << "a node was forgotten\n" << state();
  for (const auto& node : nodes_) EXPECT_EQ(node->live_workers(), 0) << "a worker was forgotten";
  // All machines were suspended at one time and were never cut off. No moment and no length of that
  // is a reason for a second round.
  if (is_calm_) {
    EXPECT_EQ(host_.last_round(), 1) << "a worker was started anew where nothing was lost";
  }
}

std::string Simulation::state() const {
  std::string text = fmt::format("{:.1f} s, round {}, {} restarts of {}, nodes {}:{}\n",
                                 std::chrono::duration<double>(time_.now() - began_).count(),
                                 host_.last_round(), host_.membership().restart_count(),
                                 plan_.budget, plan_.policy.min_nodes, plan_.policy.max_nodes);
  for (const auto& node : nodes_)
    text += fmt::format("  node {}: phase {}, round {}, {} live workers{}\n", node->name(),
                        static_cast<int>(node->phase()), node->round(), node->live_workers(),
                        node->is_over() ? ", over" : "");
  return text;
}

void expect_no_older_worker(const std::vector<std::unique_ptr<SimNode>>& nodes, std::int64_t round,
                            const std::function<std::string()>& state) {
  for (const auto& node : nodes) {
    const std::int64_t oldest = node->oldest_live_round();
    EXPECT_TRUE(oldest == 0 || oldest == round)
        << "a worker of round " << oldest << " lives on node " << node->name() << " when round "
        << round << " starts\n"
        << state();
  }
}

}  // namespace ddprun::sim
