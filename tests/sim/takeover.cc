#include "tests/sim/takeover.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/sim/simulation.h"

namespace ddprun::sim {

using std::chrono::seconds;

namespace {

constexpr seconds kFaultsLast{40};
// From the end of the faults until the job must be over.
constexpr seconds kRestLasts{240};
constexpr seconds kNoJoinTimeout{3600};  // longer than all of it

}  // namespace

JobPlan Takeover::make_plan(VirtualTime& time, bool is_calm) {
  const int max = 1 + time.draw(4);
  const int min = is_calm || time.one_in(2) ? max : 1 + time.draw(max);
  const rendezvous::KeepAlive keep_alive{.interval = seconds(1)};
  const auto lease = rendezvous::lease_for(keep_alive, max);
  // The draws keep their order: a seed means the same case.
  const seconds last_call(1 + time.draw(3));
  const seconds return_limit(5 + time.draw(10));
  const seconds resize_interval(2 + time.draw(30));
  return {.policy = {.min_nodes = min,
                     .max_nodes = max,
                     .settings = {.join_timeout = kNoJoinTimeout,
                                  .last_call = last_call,
                                  .resize_interval = resize_interval},
                     .recovery_limit = lease.length + rendezvous::kFenceMargin,
                     .return_limit = return_limit},
          .budget = 1 + time.draw(10),
          .keep_alive = keep_alive};
}

Takeover::Takeover(unsigned seed)
    : time_(seed),
      is_calm_(time_.one_in(4)),
      plan_(make_plan(time_, is_calm_)),
      began_(time_.now()),
      faults_end_(began_ + kFaultsLast),
      most_delay_ms_(is_calm_ || time_.one_in(2) ? 5 : 150),
      works_long_(is_calm_ || time_.one_in(2)),
      is_etcd_slow_(!is_calm_ && time_.one_in(2)),
      are_daemons_(time_.one_in(2)),
      is_refusal_doubted_(!are_daemons_ && time_.one_in(2)),
      // EtcdClient gives a question up after 0.7 s, and a lease of 2 s bears no slower etcd.
      etcd_(time_, is_etcd_slow_ ? 50 * (1 + time_.draw(are_daemons_ ? 7 : 20)) : most_delay_ms_,
            milliseconds(are_daemons_ ? 2000 : 3000)),
      is_in_doubt_(is_etcd_slow_) {
  etcd_.loses_answers(!is_calm_ && time_.one_in(2));
  if (time_.one_in(2)) etcd_.compacts();
  const int leaders = 2 + time_.draw(2);
  for (int i = 0; i < leaders; ++i) add_leader();
  const int nodes = plan_.policy.max_nodes + (is_calm_ ? 0 : time_.draw(2));
  for (int i = 0; i < nodes; ++i) time_.after(time_.up_to(2000), [this] { add_node(); });
  if (!is_calm_ && time_.one_in(2))
    in_time([this] {
      in_doubt();
      etcd_.away(time_.up_to(10'000));
    });
  time_.at(faults_end_, [this] { fill_up(); });
  // A leader that was overtaken, and does not know it yet, may have told its nodes the end.
  time_.at(faults_end_ + seconds(5), [this] { fill_up(); });
}

void Takeover::run() {
  const Time end = faults_end_ + kRestLasts;
  while (!testing::Test::HasFailure() && !is_over())
    if (!time_.step(end)) break;
  check_end();
}

// ---- who leads ----

void Takeover::add_leader() {
  const double rate = 1 + (time_.draw(21) - 10) / 1000.0;
  leaders_.push_back(std::make_unique<SimLeader>(
      SimLeader::World{.time = time_,
                       .etcd = etcd_,
                       .plan = plan_,
                       .most_delay_ms = most_delay_ms_,
                       .holder_of = [this](const std::string& value) -> SimLeader& {
                         return *leaders_.at(std::stoul(value));
                       },
                       .tells = [this](std::int64_t round) { tells(round); },
                       .dies_before_telling = [this] { return dies_before_telling(); },
                       .record_is_sent = [this](SimLeader& by) { return record_is_sent(by); },
                       .is_daemon = are_daemons_,
                       .is_refusal_doubted = is_refusal_doubted_,
                       .may_die_unseen = !is_calm_},
      std::to_string(leaders_.size()), rate));
  SimLeader& leader = *leaders_.back();
  leader.start();
  if (faulty()) plan_faults(leader);
}

void Takeover::plan_faults(SimLeader& leader) {
  const int kind = is_calm_ ? 0 : time_.draw(6);
  if (kind == 3) return;
  in_time([this, &leader, kind] {
    in_doubt();
    if (kind == 0) {
      kill(leader);
    } else if (kind == 4) {
      if (leader.host() != nullptr || live_leaders() < 2) return;
      leader.withdraw();
      time_.after(time_.up_to(10'000), [this, &leader] {
        leader.kill();
        add_leader();
      });
    } else if (kind == 5) {
      // One that is told late that it leads no more could give leases beyond the patience of the
      // next.
      if (!is_etcd_slow_) leader.refuse(time_.up_to(3000));
    } else if (kind == 1) {
      leader.stall(time_.up_to(time_.one_in(2) ? 4000 : 10'000));
    } else {
      leader.cut(time_.up_to(10'000));
    }
    if (!leader.is_dead() && time_.one_in(2)) plan_faults(leader);
  });
}

// A candidate does not take over at once from a leader that it never reached. So if no worker may
// be restarted, a leader lives until the others know it.
void Takeover::kill(SimLeader& leader) {
  if (live_leaders() < 2) return;
  // While nobody leads, a second death may hold the key until the nodes' leases are over.
  const auto leads = [](const auto& one) { return one->host() != nullptr; };
  if (is_calm_ && std::ranges::none_of(leaders_, leads)) return;
  const bool is_known = std::ranges::all_of(leaders_, [&](const auto& other) {
    return other.get() == &leader || other->is_dead() ||
           (is_refusal_doubted_ ? other->watches(leader) : other->has_reached(leader));
  });
  if (is_calm_ && leader.host() != nullptr && !is_known)
    return time_.after(milliseconds(50), [this, &leader] { kill(leader); });
  leader.kill();
  time_.after(time_.up_to(5000), [this] { add_leader(); });
}

bool Takeover::dies_before_telling() {
  if (is_calm_ || !faulty() || live_leaders() < 2 || !time_.one_in(12)) return false;
  in_doubt();
  time_.after(time_.up_to(5000), [this] { add_leader(); });
  return true;
}

// A leader may lose its leadership and not know it at this moment. Or a node may come back before
// it is told of its round.
milliseconds Takeover::record_is_sent(SimLeader& leader) {
  if (is_calm_ || !faulty()) return milliseconds(0);
  switch (time_.draw(12)) {
    case 0:
      if (is_etcd_slow_) return milliseconds(0);
      in_doubt();
      leader.refuse(seconds(3));
      break;
    case 1:
      in_doubt();
      leader.stall(time_.up_to(10'000));
      break;
    case 2:
    case 3:
      for (const auto& node : nodes_)
        if (time_.one_in(2)) node->reset(true);
      return time_.up_to(1500);
    default:
      return milliseconds(0);
  }
  return time_.up_to(400);
}

// A value says who wrote it.
void Takeover::find_host(SimNode& node, const std::function<void(SimHost*)>& answer) {
  etcd_.read(true, [this, &node, answer](const std::optional<SimEtcd::Answer>& found) {
    if (found && found->record && found->record->succeeded)
      return node.job_over(*found->record->succeeded);
    if (!found || !found->leader) return answer(nullptr);
    const SimLeader& leader = *leaders_.at(std::stoul(found->leader->value));
    answer(leader.listens(found->leader->value) ? leader.host() : nullptr);
  });
}

// ---- nodes ----

void Takeover::add_node() {
  if (etcd_.record() && etcd_.record()->succeeded) return;
  const std::string id = std::to_string(nodes_.size() + 1);
  const auto since_began = std::chrono::duration_cast<milliseconds>(time_.now() - began_);
  NodePlan plan{
      .spec = {.node_id = id,
               .hostname = "h" + id,
               .local_world_size = 1 + time_.draw(2),
               .store_port = static_cast<std::uint16_t>(nodes_.size() + 1),
               .max_restarts = plan_.budget},
      .clock_rate = 1 + (time_.draw(21) - 10) / 1000.0,
      .work_least = works_long_ ? kFaultsLast - since_began + seconds(5) : milliseconds(0),
      .most_delay_ms = most_delay_ms_};
  const std::size_t index = nodes_.size();
  nodes_.push_back(std::make_unique<SimNode>(
      SimNode::World{.time = time_,
                     .find_host = [this, index](auto answer) { find_host(*nodes_[index], answer); },
                     .is_elected = true,
                     .new_session = [this] { return ++last_session_; },
                     .workers_start = [this](std::int64_t round) { check_start(round); },
                     .faulty = [this] { return faulty() && !is_calm_; }},
      std::move(plan)));
  SimNode& node = *nodes_.back();
  if (is_in_doubt_) node.watch_network();
  node.start();
  if (faulty() && is_etcd_slow_) plan_early_faults(node);
  if (faulty() && !is_calm_) plan_faults(node);
}

// While the record of its first round is written.
void Takeover::plan_early_faults(SimNode& node) {
  const int fault = time_.draw(4);
  if (fault < 2) time_.after(time_.up_to(4000), [&node] { node.reset(true); });
  if (fault == 2)
    time_.after(time_.up_to(4000), [this, &node] {
      node.crash(true);
      time_.after(time_.up_to(2000), [this] { add_node(); });
    });
}

void Takeover::plan_faults(SimNode& node) {
  switch (time_.draw(8)) {
    case 0:
      return in_time([this, &node] {
        node.crash(!time_.one_in(3));
        time_.after(time_.up_to(8000), [this] { add_node(); });
      });
    case 1:
      return in_time([this, &node] {
        const int which = time_.draw(3);
        node.cut(which != 0, which != 1, time_.up_to(time_.one_in(2) ? 1500 : 12'000));
      });
    case 2:
      return in_time([&node] { node.leave(); });
    case 3:
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

void Takeover::in_time(std::function<void()> act) {
  time_.after(time_.up_to(30'000), [this, act = std::move(act)] {
    if (faulty()) act();
  });
}

// From a fault of a leader on, the leases of all nodes count.
void Takeover::in_doubt() {
  is_in_doubt_ = true;
  for (const auto& node : nodes_) node->watch_network();
}

// ---- what must hold ----

void Takeover::tells(std::int64_t round) {
  EXPECT_GT(round, last_round_) << "a round's number does not grow";
  last_round_ = round;
  ++rounds_;
  ASSERT_TRUE(etcd_.record()) << "a round is told that is not recorded";
  EXPECT_GE(etcd_.record()->job.round, round) << "a round is told that is not recorded";
}

void Takeover::check_start(std::int64_t round) const {
  expect_no_older_worker(nodes_, round, [this] { return state(); });
}

int Takeover::live_leaders() const {
  return static_cast<int>(
      std::ranges::count_if(leaders_, [](const auto& leader) { return !leader->is_dead(); }));
}

int Takeover::live_nodes() const {
  return static_cast<int>(std::ranges::count_if(
      nodes_, [](const auto& node) { return !node->is_over() && !node->is_leaving(); }));
}

void Takeover::fill_up() {
  etcd_.loses_answers(false);
  for (int missing = plan_.policy.max_nodes - live_nodes(); missing > 0; --missing)
    time_.after(time_.up_to(1000), [this] { add_node(); });
}

bool Takeover::is_over() const {
  return etcd_.record() && etcd_.record()->succeeded &&
         std::ranges::all_of(nodes_, [](const auto& node) { return node->is_over(); });
}

void Takeover::check_end() const {
  if (testing::Test::HasFailure()) return;
  EXPECT_TRUE(is_over()) << "the job hangs\n" << state();
  for (const auto& node : nodes_) EXPECT_EQ(node->live_workers(), 0) << "a worker was forgotten";
  // One may begin while etcd forgets what was there when its leader asked.
  EXPECT_LE(etcd_.dead_watches(), etcd_.compactions() * static_cast<int>(leaders_.size()))
      << "a key is watched and read again and again";
  if (is_calm_) {
    EXPECT_LE(rounds_, 1) << "a worker was restarted without a cause\n" << state();
  }
}

std::string Takeover::state() const {
  std::string text = fmt::format("{:.1f} s, round {}, nodes {}:{}, budget {}{}\n",
                                 std::chrono::duration<double>(time_.now() - began_).count(),
                                 last_round_, plan_.policy.min_nodes, plan_.policy.max_nodes,
                                 plan_.budget, is_calm_ ? ", calm" : "");
  for (const auto& leader : leaders_)
    text += fmt::format("  leader {}:{}{}\n", leader->name(), leader->is_dead() ? " dead" : "",
                        leader->host() != nullptr ? " leads" : "");
  for (const auto& node : nodes_)
    text += fmt::format("  node {}: phase {}, round {}, {} live workers{}\n", node->name(),
                        static_cast<int>(node->phase()), node->round(), node->live_workers(),
                        node->is_over() ? ", over" : "");
  return text;
}

}  // namespace ddprun::sim
