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

agent::Lifecycle::Settings settings_of(const NodePlan& plan) {
  return {.grace = kGrace,
          .worker_count = plan.spec.local_world_size,
          .max_restarts = plan.spec.max_restarts,
          .hostname = plan.spec.hostname};
}

}  // namespace

// The messages that the memory repeats to a host.
class SimNode::Voice final : public rendezvous::Session {
 public:
  explicit Voice(SimNode& node) : node_(node) {}
  // The first word of all is a plain join.
  void join(const rendezvous::NodeSpec& /*spec*/) override { node_.ask_for_seat(); }
  void resume(const rendezvous::ResumeRequest& resumed) override {
    if (node_.connections_ == 1) return join(resumed.spec);
    node_.say([resumed](SimHost& host, SessionId session) { host.resumed(session, resumed); });
  }
  void report_failure(std::int64_t round, const rendezvous::Failure& failure) override {
    node_.say([round, failure](SimHost& host, SessionId session) {
      host.failed(session, round, failure);
    });
  }
  void report_success(std::int64_t round) override {
    node_.say([round](SimHost& host, SessionId session) { host.succeeded(session, round); });
  }
  void leave(const rendezvous::Failure& /*reason*/) override {
    node_.say([](SimHost& host, SessionId session) { host.left(session); });
  }
  void gone() override {}
  std::optional<rendezvous::WaitStatus> wait_status() const override { return {}; }

 private:
  SimNode& node_;
};

SimNode::SimNode(const World& world, NodePlan plan)
    : world_(world),
      plan_(std::move(plan)),
      began_(world.time.now()),
      clock_(began_, plan_.clock_rate),
      cycle_(settings_of(plan_)) {}

milliseconds SimNode::stamp() const {
  return std::chrono::duration_cast<milliseconds>(local_now().time_since_epoch());
}

void SimNode::when_awake(std::function<void()> act) {
  if (over_) return;
  if (world_.time.now() >= awake_at_) return act();
  world_.time.at(awake_at_, [this, act = std::move(act)] { when_awake(act); });
}

// ---- the session ----

void SimNode::start() { perform(cycle_.start()); }

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

void SimNode::look_for_host() {
  if (over_ || connection_) return;
  const auto again = [this, turn = ++search_] {
    if (turn == search_) look_for_host();
  };
  if (cut_up_ + cut_down_ > 0) return world_.time.after(milliseconds(500), again);
  world_.find_host([this, turn = search_, again](SimHost* host) {
    when_awake([this, turn, host, again] {
      if (over_ || connection_ || turn != search_) return;
      if (host == nullptr || host->is_over()) return world_.time.after(milliseconds(200), again);
      open_session(*host);
    });
  });
}

void SimNode::open_session(SimHost& host) {
  ++connections_;
  connection_ = std::make_shared<Connection>(Connection{&host, world_.new_session(),
                                                        OneWay(world_.time, plan_.most_delay_ms),
                                                        OneWay(world_.time, plan_.most_delay_ms)});
  const SharedConnection over = connection_;
  for (int i = 0; i < cut_up_; ++i) over->up.block();
  for (int i = 0; i < cut_down_; ++i) over->down.block();
  SimHost::Ears ears{.message =
                         [this, over](const rendezvous::HostMessage& message) {
                           hear(over, [this, message] { heard(message); });
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
      if (connection_ == over && !over->is_let_in) lose(false);
    });
  });
}

// The first lease says that the node was let in. Only then it says what it wants.
void SimNode::renewed(milliseconds beat, const rendezvous::Lease& lease) {
  const bool is_first = !is_let_in();
  if (is_first) {
    const auto carried = lease_.ends();
    lease_ = {};
    if (goes_on_) lease_.carry(carried);
  }
  const bool comes_back = std::exchange(goes_on_, false);
  connection_->is_let_in = true;
  lease_.renewed(is_first ? stamp() : beat, lease);
  if (watched_) schedule_beat();
  if (watched_ && is_first) {
    say([](SimHost& to, SessionId session) { to.watch(session); });
    watch_lease(++lease_turn_);
  }
  // Its words now may be lost.
  if (comes_back && world_.faulty() && world_.time.one_in(4))
    cut(true, world_.time.one_in(2), world_.time.up_to(12'000));
  Voice voice(*this);
  if (is_first && !over_) memory_.say_to(voice);
  if (lease_.is_doubted(stamp())) return;
  for (const rendezvous::HostMessage& said : std::exchange(held_, {})) heard(said);
}

void SimNode::ask_for_seat() {
  say([spec = plan_.spec](SimHost& host, SessionId session) { host.joined(session, spec); });
}

void SimNode::heard(const rendezvous::HostMessage& message) {
  const bool is_last = std::holds_alternative<rendezvous::JobEnded>(message) ||
                       std::holds_alternative<rendezvous::SessionLost>(message);
  if (watched_ && lease_.is_doubted(stamp()) && !is_last) return held_.push_back(message);
  if (memory_.told(message)) perform(cycle_.told(message, local_now()));
}

// The connection is gone, or nobody let us in. As ElectedSession and ResumingSession do it.
void SimNode::lose(bool is_fenced) {
  const bool was_let_in = is_let_in();
  // At the end of a lease the host must not hear of the end at once. The workers are not gone yet.
  if (!is_fenced) say([](SimHost& host, SessionId session) { host.broke(session); });
  // A cut may swallow that for ever. The host looks for silence of whom it let in, as the service
  // does.
  if (watched_ && connection_) connection_->host->watch(connection_->session);
  connection_.reset();
  held_.clear();
  ++beat_turn_;
  const bool has_lease = !is_fenced && was_let_in && lease_.ends() > stamp();
  if (has_lease && memory_.is_in_round()) goes_on_ = true;
  if (!goes_on_ && memory_.is_in_round()) break_round();
  look_for_host();
}

void SimNode::break_round() {
  goes_on_ = false;
  // Nobody is left who could run beside the others. (An elected leader is not awaited so long.)
  if (!world_.is_elected && memory_.resumed().state == rendezvous::NodeState::kSucceeded) return;
  const rendezvous::RoundBroken broken{
      .round = memory_.round(), .cause = {.message = "no leader"}, .is_fenced = true};
  if (memory_.is_round_whole()) memory_.told(broken);
  perform(cycle_.told(broken, local_now()));
}

void SimNode::job_over(bool succeeded) {
  if (over_) return;
  ++search_;
  perform(cycle_.told(rendezvous::JobEnded{.succeeded = succeeded}, local_now()));
}

void SimNode::watch_network() {
  if (std::exchange(watched_, true) || !is_let_in()) return;
  // Until now beats went to and fro: the last one at some time within the pause between two.
  const auto pause = static_cast<int>(lease_.lease().beat_every.count());
  lease_.renewed(stamp() - world_.time.up_to(pause), lease_.lease());
  connection_->host->watch(connection_->session);
  beat();
  watch_lease(++lease_turn_);
}

void SimNode::schedule_beat() {
  const auto left = std::max(lease_.next_beat() - stamp(), milliseconds(0));
  world_.time.after(left, [this, turn = ++beat_turn_] {
    if (turn == beat_turn_) beat();
  });
}

void SimNode::beat() {
  if (over_ || !is_let_in()) return;
  when_awake([this, turn = beat_turn_] {
    if (!is_let_in() || turn != beat_turn_) return;
    lease_.beat_sent(stamp());
    say([stamp = stamp()](SimHost& host, SessionId session) { host.beat(session, stamp); });
    schedule_beat();
  });
}

void SimNode::watch_lease(int turn) {
  if (over_ || turn != lease_turn_) return;
  when_awake([this, turn] {
    if (turn != lease_turn_) return;
    const bool is_over = is_let_in() ? lease_.is_over(stamp()) : stamp() >= lease_.ends();
    if (!is_over) {
      if (is_let_in()) schedule_beat();
      return world_.time.after((is_let_in() ? lease_.look_at() : lease_.ends()) - stamp(),
                               [this, turn] { watch_lease(turn); });
    }
    if (is_let_in()) return lose(true);
    if (goes_on_) break_round();
  });
}

// ---- what the lifecycle decides ----

void SimNode::perform(const Actions& actions) {
  if (over_) return;
  for (const agent::Action& action : actions) {
    if (std::holds_alternative<agent::JoinRound>(action)) {
      memory_.joined(plan_.spec);
      is_let_in() ? ask_for_seat() : look_for_host();
    } else if (std::holds_alternative<agent::StartWorkers>(action)) {
      start_workers();
    } else if (const auto* ask = std::get_if<agent::SignalWorkers>(&action)) {
      ask_workers(ask->signo);
    } else if (std::holds_alternative<agent::KillWorkers>(action)) {
      kill_workers();
    } else if (const auto* failed = std::get_if<agent::ReportFailure>(&action)) {
      memory_.failed(round(), failed->failure);
      if (is_let_in()) Voice(*this).report_failure(round(), failed->failure);
    } else if (std::holds_alternative<agent::ReportSuccess>(action)) {
      memory_.succeeded(round());
      if (is_let_in()) Voice(*this).report_success(round());
    } else if (std::holds_alternative<agent::LeaveJob>(action)) {
      leaving_ = true;
      memory_.left({.message = "left"});
      if (is_let_in()) Voice(*this).leave({});
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
  if (with_word) return say([](SimHost& host, SessionId session) { host.ended(session); });
  connection_->up.block();  // for ever
  connection_->host->watch(connection_->session);
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
  if (over_ || !is_let_in()) return;
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
