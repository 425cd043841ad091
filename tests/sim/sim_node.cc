#include "tests/sim/sim_node.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <csignal>
#include <utility>

namespace ddprun::sim {

using agent::Actions;
using agent::Phase;

namespace {

constexpr milliseconds kGrace{3000};
// How long workers run at most that were suspended and have no seat any more.
constexpr milliseconds kAsks = rendezvous::kAskLimit + rendezvous::kFenceMargin;

// No node gives its host up: a job that is over ends it.
constexpr std::chrono::hours kRejoinLimit{1};

rendezvous::FailoverRules failover_rules(bool is_elected) {
  return {.policy =
              is_elected ? rendezvous::HostPolicy::kElectedHost : rendezvous::HostPolicy::kSameHost,
          .rejoin_limit = kRejoinLimit};
}

agent::Lifecycle::Settings settings_of(const NodePlan& plan) {
  return {.grace = kGrace,
          .worker_count = plan.spec.local_world_size,
          .max_restarts = plan.spec.max_restarts,
          .hostname = plan.spec.hostname};
}

}  // namespace

// The words of the node over its connection, once it is let in.
class SimNode::Voice final : public rendezvous::Session {
 public:
  explicit Voice(SimNode& node) : node_(node) {}
  // The first word of all is a plain join.
  void join(const rendezvous::NodeSpec& spec) override {
    say([spec](SimHost& host, SessionId session) { host.joined(session, spec); });
  }
  void resume(const rendezvous::ResumeRequest& resumed) override {
    if (node_.connections_ == 1) return join(resumed.spec);
    say([resumed](SimHost& host, SessionId session) { host.resumed(session, resumed); });
  }
  void report_failure(std::int64_t round, const rendezvous::Failure& failure) override {
    say([round, failure](SimHost& host, SessionId session) {
      host.failed(session, round, failure);
    });
  }
  void report_success(std::int64_t round) override {
    say([round](SimHost& host, SessionId session) { host.succeeded(session, round); });
  }
  void leave(const rendezvous::Failure& /*reason*/) override {
    say([](SimHost& host, SessionId session) { host.left(session); });
  }
  void gone() override {}
  std::optional<rendezvous::WaitStatus> wait_status() const override { return {}; }

 private:
  void say(std::function<void(SimHost&, SessionId)> words) {
    node_.is_admitted() ? node_.say(std::move(words)) : node_.unsent_.push_back(std::move(words));
  }

  SimNode& node_;
};

SimNode::SimNode(const World& world, NodePlan plan)
    : world_(world),
      plan_(std::move(plan)),
      began_(world.time.now()),
      clock_(began_, plan_.clock_rate),
      cycle_(settings_of(plan_)),
      failover_(failover_rules(world.is_elected)) {}

milliseconds SimNode::stamp() const {
  return std::chrono::duration_cast<milliseconds>(local_now().time_since_epoch());
}

void SimNode::when_awake(std::function<void()> act) {
  if (over_) return;
  if (world_.time.now() >= awake_at_) return act();
  world_.time.at(awake_at_, [this, act = std::move(act)] { when_awake(act); });
}

// ---- the session ----

void SimNode::start() {
  if (world_.is_elected) look_for_leader();
  act(failover_.start());
  perform(cycle_.start());
}

void SimNode::say(std::function<void(SimHost&, SessionId)> words) {
  if (!connection_) return;
  connection_->up.send(
      [host = connection_->host, session = connection_->session, words = std::move(words)] {
        host->arrive([host, session, words] { words(*host, session); });
      });
}

// A message of an older connection is not heard.
void SimNode::hear(const SharedConnection& over, std::function<void()> act) {
  over->down.send([this, over, act = std::move(act)] {
    when_awake([this, over, act] {
      if (connection_ == over) act();
    });
  });
}

// As Election does it for a node that does not lead.
void SimNode::look_for_leader() {
  if (over_) return;
  const auto again = [this, turn = ++search_] {
    if (turn == search_) look_for_leader();
  };
  if (cut_up_ + cut_down_ > 0) return world_.time.after(milliseconds(500), again);
  world_.find_host([this, turn = search_, again](SimHost* host) {
    when_awake([this, turn, host, again] {
      if (turn != search_) return;
      if (host == nullptr || host->is_over()) return world_.time.after(milliseconds(200), again);
      leader_ = host;
      act(failover_.leader_found("leader", Time{}));
    });
  });
}

void SimNode::connect(SimHost& host) {
  ++connections_;
  connection_ = std::make_shared<Connection>(Connection{&host, world_.new_session(),
                                                        OneWay(world_.time, plan_.most_delay_ms),
                                                        OneWay(world_.time, plan_.most_delay_ms)});
  const SharedConnection over = connection_;
  for (int i = 0; i < cut_up_; ++i) over->up.block();
  for (int i = 0; i < cut_down_; ++i) over->down.block();
  SimHost::Ears ears{.message =
                         [this, over](const rendezvous::HostMessage& message) {
                           hear(over, [this, message] { on_message(message); });
                         },
                     .lease =
                         [this, over](milliseconds stamp, const rendezvous::Lease& lease) {
                           hear(over, [this, stamp, lease] { renewed(stamp, lease); });
                         },
                     .closed = [this, over] { hear(over, [this] { lose(false); }); }};
  say([ears](SimHost& to, SessionId session) { to.opened(session, ears); });
  if (!world_.is_elected) return;
  // It may have ended before it heard of us, or stand still.
  world_.time.after(milliseconds(1000 + 3 * plan_.most_delay_ms), [this, over] {
    when_awake([this, over] {
      if (connection_ == over && !over->is_admitted) lose(false);
    });
  });
}

// The host may come back to a connection that was cut.
void SimNode::drop_connection() {
  ++search_;
  unsent_.clear();
  held_.clear();
  ++heartbeat_turn_;
  if (!connection_) return;
  // A cut may swallow the end for ever. The host looks for silence of whom it let in, as the
  // service does.
  if (watched_) connection_->host->watch(connection_->session);
  connection_.reset();
}

// The first lease says that the node was let in. Only then it says what it wants.
void SimNode::renewed(milliseconds heartbeat, const rendezvous::Lease& lease) {
  const bool is_first = !is_admitted();
  const bool comes_back =
      is_first && failover_.workers() == rendezvous::Failover::Workers::kOnLease;
  if (is_first) {
    const auto carried = lease_.ends();
    lease_ = {};
    if (comes_back) lease_.carry(carried);
  }
  const SharedConnection over = connection_;
  over->is_admitted = true;
  lease_.renewed(is_first ? stamp() : heartbeat, lease);
  if (watched_) schedule_heartbeat();
  if (watched_ && is_first) say([](SimHost& to, SessionId session) { to.watch(session); });
  // Its words now may be lost.
  if (comes_back && world_.faulty() && world_.time.one_in(4))
    cut(true, world_.time.one_in(2), world_.time.up_to(12'000));
  for (auto& words : std::exchange(unsent_, {})) say(std::move(words));
  if (is_first) act(failover_.admitted(local_now()));
  // The lease of before may be over by now.
  if (watched_ && is_first && connection_ == over) watch_lease(++lease_turn_);
  if (connection_ != over) return;
  if (lease_.is_doubted(stamp())) return;
  for (const rendezvous::HostMessage& said : std::exchange(held_, {})) on_message(said);
}

void SimNode::on_message(const rendezvous::HostMessage& message) {
  const bool is_last = std::holds_alternative<rendezvous::JobEnded>(message) ||
                       std::holds_alternative<rendezvous::SessionLost>(message);
  if (watched_ && lease_.is_doubted(stamp()) && !is_last) return held_.push_back(message);
  act(failover_.message(message, local_now()));
}

// The connection is gone, or nobody let us in. As RemoteSession tells it.
void SimNode::lose(bool is_fenced) {
  act(failover_.message(
      rendezvous::SessionLost{
          .error = {ErrorCode::kUnavailable, "no host"},
          .is_fenced = is_fenced,
          .was_reached = is_admitted(),
          .lease_ends = Time(is_admitted() ? lease_.ends() : milliseconds(0)),
          .was_suspended = watched_ && is_admitted() && lease_.was_suspended(stamp()),
          .may_return = is_admitted()},
      local_now()));
}

void SimNode::job_over(bool succeeded) {
  if (!over_) act(failover_.job_over(succeeded));
}

// ---- what the failover decides ----

void SimNode::act(const rendezvous::FailoverActions& actions, const Words& words) {
  look_again_for_host();
  for (const rendezvous::FailoverAction& action : actions) {
    if (over_) return;
    if (std::holds_alternative<rendezvous::PassOn>(action)) {
      Voice voice(*this);
      words(voice);
      continue;
    }
    std::visit(
        [this](const auto& one) {
          if constexpr (requires { this->act(one); }) this->act(one);
        },
        action);
  }
}

void SimNode::act(const rendezvous::OpenSession& /*action*/) {
  if (world_.is_elected) return connect(*leader_);
  const auto failed = [this, turn = ++search_] {
    when_awake([this, turn] {
      if (turn == search_) lose(false);
    });
  };
  if (cut_up_ + cut_down_ > 0) return world_.time.after(milliseconds(500), failed);
  world_.find_host([this](SimHost* host) { connect(*host); });
}

void SimNode::act(const rendezvous::CloseSession& /*action*/) {
  say([](SimHost& host, SessionId session) { host.broke(session); });
  drop_connection();
}

// The host must not hear of the end at once: the workers are not gone yet.
void SimNode::act(const rendezvous::FenceSession& /*action*/) { drop_connection(); }

void SimNode::act(const rendezvous::Replay& /*action*/) {
  Voice voice(*this);
  failover_.replay_to(voice);
}

void SimNode::act(const rendezvous::Deliver& action) {
  perform(cycle_.on_message(action.message, local_now()));
}

void SimNode::act(const rendezvous::LookForLeader& /*action*/) { look_for_leader(); }

void SimNode::act(const rendezvous::EndJob& /*action*/) { ++search_; }

void SimNode::look_again_for_host() {
  const Time look = failover_.look_again_at();
  if (look == Time::max() || look == failover_at_) return;
  failover_at_ = look;
  world_.time.at(clock_.global(look), [this] {
    when_awake([this] {
      failover_at_ = Time{};
      act(failover_.time_passed(local_now()));
    });
  });
}

void SimNode::watch_network() {
  if (std::exchange(watched_, true) || !is_admitted()) return;
  // Until now heartbeats went to and fro: the last one at some time within the pause between two.
  const auto pause = static_cast<int>(lease_.lease().heartbeat_every.count());
  lease_.renewed(stamp() - world_.time.up_to(pause), lease_.lease());
  connection_->host->watch(connection_->session);
  heartbeat();
  watch_lease(++lease_turn_);
}

void SimNode::schedule_heartbeat() {
  const auto left = std::max(lease_.next_heartbeat() - stamp(), milliseconds(0));
  world_.time.after(left, [this, turn = ++heartbeat_turn_] {
    if (turn == heartbeat_turn_) heartbeat();
  });
}

void SimNode::heartbeat() {
  if (over_ || !is_admitted()) return;
  when_awake([this, turn = heartbeat_turn_] {
    if (!is_admitted() || turn != heartbeat_turn_) return;
    lease_.heartbeat_sent(stamp());
    say([stamp = stamp()](SimHost& host, SessionId session) { host.heartbeat(session, stamp); });
    schedule_heartbeat();
  });
}

void SimNode::watch_lease(int turn) {
  if (over_ || turn != lease_turn_) return;
  when_awake([this, turn] {
    if (turn != lease_turn_ || !is_admitted()) return;
    if (lease_.is_over(stamp())) return lose(true);
    schedule_heartbeat();
    world_.time.after(lease_.look_at() - stamp(), [this, turn] { watch_lease(turn); });
  });
}

// ---- what the lifecycle decides ----

void SimNode::perform(const Actions& actions) {
  if (over_) return;
  for (const agent::Action& action : actions) {
    if (std::holds_alternative<agent::RequestRound>(action)) {
      act(failover_.joined(plan_.spec),
          [this](rendezvous::Session& session) { session.join(plan_.spec); });
    } else if (std::holds_alternative<agent::StartWorkers>(action)) {
      start_workers();
    } else if (const auto* ask = std::get_if<agent::SignalWorkers>(&action)) {
      ask_workers(ask->signo);
    } else if (std::holds_alternative<agent::KillWorkers>(action)) {
      kill_workers();
    } else if (const auto* failed = std::get_if<agent::ReportFailure>(&action)) {
      act(failover_.failed(round(), failed->failure),
          [&](rendezvous::Session& session) { session.report_failure(round(), failed->failure); });
    } else if (std::holds_alternative<agent::ReportSuccess>(action)) {
      act(failover_.succeeded(round()),
          [this](rendezvous::Session& session) { session.report_success(round()); });
    } else if (std::holds_alternative<agent::LeaveJob>(action)) {
      leaving_ = true;
      act(failover_.left({.message = "left"}),
          [](rendezvous::Session& session) { session.leave({}); });
    } else if (std::holds_alternative<agent::Finish>(action)) {
      return finish();
    }
  }
  look_again();
}

void SimNode::finish() {
  over_ = true;
  EXPECT_EQ(live_workers(), 0) << "the launcher ended before its workers";
  say([](SimHost& host, SessionId session) { host.ended(session); });
}

void SimNode::look_again() {
  const Time look = cycle_.look_again_at();
  if (look == Time::max() || look == timer_at_) return;
  timer_at_ = look;
  world_.time.at(clock_.global(look), [this] {
    when_awake([this] {
      timer_at_ = Time{};
      perform(cycle_.time_passed(local_now()));
    });
  });
}

// ---- the workers ----

int SimNode::live_workers() const {
  return static_cast<int>(std::ranges::count_if(workers_, &SimWorker::alive));
}

std::int64_t SimNode::oldest_live_round() const {
  if (world_.time.now() < suspended_until_ + kAsks) return 0;
  const auto first = std::ranges::find_if(workers_, &SimWorker::alive);
  return first == workers_.end() ? 0 : first->round;
}

void SimNode::start_workers() {
  world_.workers_start(round());
  for (int rank = 0; rank < plan_.spec.local_world_size; ++rank) start_worker(rank);
}

// Fails now and then, or hangs until something ends it; otherwise works and succeeds. When nothing
// may fail any more, a hang ends as a failure: somebody looked after it.
void SimNode::start_worker(int local_rank) {
  VirtualTime& time = world_.time;
  const std::size_t index = workers_.size();
  workers_.push_back(
      {.local_rank = local_rank, .round = round(), .ignores_request = time.one_in(6)});
  const bool fails = world_.faulty() && time.one_in(12);
  const auto least =
      plan_.work_least - std::chrono::duration_cast<milliseconds>(time.now() - began_);
  const auto lasts =
      fails ? time.up_to(20'000) : std::max(least, milliseconds(0)) + time.up_to(10'000);
  time.after(lasts + milliseconds(1), [this, index, fails] {
    if (!workers_[index].hangs) exit_worker(index, fails ? 1 : 0);
  });
}

// The kernel ends it whether the agent runs or not; the agent hears of it when it runs.
void SimNode::exit_worker(std::size_t index, int code) {
  if (!workers_[index].alive) return;
  if (world_.time.now() < suspended_until_)
    return world_.time.at(suspended_until_, [this, index, code] { exit_worker(index, code); });
  workers_[index].alive = false;
  const agent::WorkerExit exit{
      .local_rank = workers_[index].local_rank, .pid = 1, .exit_code = code};
  when_awake([this, exit] { perform(cycle_.worker_exited(exit, local_now())); });
}

void SimNode::ask_workers(int signo) {
  for (std::size_t i = 0; i < workers_.size(); ++i) {
    if (!workers_[i].alive) continue;
    if (workers_[i].ignores_request) {
      workers_[i].hangs = true;
      continue;
    }
    world_.time.after(world_.time.up_to(1500), [this, i, signo] { exit_worker(i, -signo); });
  }
}

void SimNode::kill_workers() {
  for (std::size_t i = 0; i < workers_.size(); ++i) {
    if (!workers_[i].alive) continue;
    world_.time.after(world_.time.up_to(100), [this, i] { exit_worker(i, -SIGKILL); });
  }
}

// ---- faults ----

void SimNode::crash(bool with_word) {
  if (over_) return;
  over_ = true;
  for (SimWorker& worker : workers_) worker.alive = false;
  if (!connection_) return;
  // The word is lost if the connection has just been reset. Then the silence tells.
  connection_->host->watch(connection_->session);
  if (with_word) return say([](SimHost& host, SessionId session) { host.ended(session); });
  connection_->up.block();  // for ever
}

void SimNode::leave() {
  if (!over_) when_awake([this] { perform(cycle_.stop_requested(SIGTERM, local_now())); });
}

void SimNode::cut(bool up, bool down, milliseconds length) {
  if (over_) return;
  watch_network();
  cut_up_ += up ? 1 : 0;
  cut_down_ += down ? 1 : 0;
  if (up && connection_) connection_->up.block();
  if (down && connection_) connection_->down.block();
  world_.time.after(length, [this, up, down] {
    cut_up_ -= up ? 1 : 0;
    cut_down_ -= down ? 1 : 0;
    if (up && connection_) connection_->up.unblock();
    if (down && connection_) connection_->down.unblock();
  });
}

void SimNode::reset(bool host_notices) {
  if (over_ || !is_admitted()) return;
  watch_network();
  const SharedConnection over = connection_;
  over->up.close();
  over->down.close();
  if (host_notices)
    world_.time.after(world_.time.up_to(plan_.most_delay_ms),
                      [over] { over->host->arrive([over] { over->host->broke(over->session); }); });
  world_.time.after(world_.time.up_to(plan_.most_delay_ms), [this, over] {
    when_awake([this, over] {
      if (connection_ == over) lose(false);
    });
  });
}

void SimNode::stall(milliseconds length) {
  if (over_) return;
  watch_network();
  awake_at_ = std::max(awake_at_, world_.time.now() + length);
}

void SimNode::suspend(milliseconds length) {
  if (over_) return;
  stall(length);
  suspended_until_ = awake_at_;
  world_.time.at(awake_at_ + kAsks, [this] {
    if (over_ || world_.time.now() < suspended_until_ + kAsks) return;
    const std::int64_t oldest = oldest_live_round();
    EXPECT_TRUE(oldest == 0 || oldest >= world_.last_round())
        << "a worker of round " << oldest << " goes on after a suspension beside round "
        << world_.last_round();
  });
}

}  // namespace ddprun::sim
