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

agent::Lifecycle::Settings settings_of(const NodePlan& plan) {
  return {.grace = kGrace,
          .worker_count = plan.spec.local_world_size,
          .max_restarts = plan.spec.max_restarts,
          .hostname = plan.spec.hostname};
}

Time scaled(Time from, Time time, double rate) {
  const std::chrono::duration<double, std::nano> since = time - from;
  return from + std::chrono::nanoseconds(static_cast<std::int64_t>(since.count() * rate));
}

}  // namespace

SimNode::SimNode(const World& world, SessionId session, NodePlan plan)
    : world_(world),
      session_(session),
      plan_(std::move(plan)),
      began_(world.time.now()),
      cycle_(settings_of(plan_)),
      up_(world.time, plan_.most_delay_ms),
      down_(world.time, plan_.most_delay_ms) {}

Time SimNode::local(Time time) const { return scaled(began_, time, plan_.clock_rate); }
// Rounded up: a timer never fires before its time.
Time SimNode::global(Time time) const {
  return scaled(began_, time, 1 / plan_.clock_rate) + std::chrono::microseconds(1);
}
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

void SimNode::say(std::function<void(SimHost&)> words) {
  up_.send([host = &world_.host, words = std::move(words)] { words(*host); });
}

void SimNode::hear(std::function<void()> act) {
  down_.send([this, act = std::move(act)] { when_awake(act); });
}

void SimNode::open_session() {
  has_session_ = true;
  SimHost::Ears ears{.message =
                         [this](const rendezvous::HostMessage& message) {
                           hear([this, message] { perform(cycle_.told(message, local_now())); });
                         },
                     .lease =
                         [this](milliseconds stamp, const rendezvous::Lease& lease) {
                           hear([this, stamp, lease] { renewed(stamp, lease); });
                         },
                     .closed =
                         [this] {
                           hear([this] {
                             perform(cycle_.session_lost(
                                 {.error = {ErrorCode::kUnavailable, "closed"}}, local_now()));
                           });
                         }};
  say([session = session_, ears](SimHost& host) { host.opened(session, ears); });
}

// The first lease says that the node was let in. Only then it asks for a seat.
void SimNode::renewed(milliseconds beat, const rendezvous::Lease& lease) {
  const bool is_first = !lease_.is_held();
  lease_.renewed(is_first ? stamp() : beat, lease);
  if (watched_) schedule_beat();
  if (is_first && !over_) ask_for_seat();
}

void SimNode::ask_for_seat() {
  say([session = session_, spec = plan_.spec](SimHost& host) { host.joined(session, spec); });
}

void SimNode::watch_network() {
  if (watched_ || !has_session_ || !lease_.is_held()) return;
  watched_ = true;
  // Until now beats went to and fro: the last one at some time within the pause between two.
  const auto pause = static_cast<int>(lease_.lease().beat_every.count());
  lease_.renewed(stamp() - world_.time.up_to(pause), lease_.lease());
  world_.host.watch(session_);
  beat();
  watch_lease();
}

void SimNode::schedule_beat() {
  const auto left = std::max(lease_.next_beat() - stamp(), milliseconds(0));
  world_.time.after(left, [this, turn = ++beat_turn_] {
    if (turn == beat_turn_) beat();
  });
}

void SimNode::beat() {
  if (over_) return;
  when_awake([this] {
    lease_.beat_sent(stamp());
    say([session = session_, stamp = stamp()](SimHost& host) { host.beat(session, stamp); });
    schedule_beat();
  });
}

void SimNode::watch_lease() {
  if (over_) return;
  when_awake([this] {
    const auto left = lease_.ends() - stamp();
    if (left.count() > 0) return world_.time.after(left, [this] { watch_lease(); });
    down_.close();
    perform(cycle_.session_lost({.error = {ErrorCode::kUnavailable, "silent"}, .is_fenced = true},
                                local_now()));
  });
}

// ---- what the lifecycle decides ----

void SimNode::perform(const Actions& actions) {
  if (over_) return;
  for (const agent::Action& action : actions) {
    if (std::holds_alternative<agent::JoinRound>(action)) {
      has_session_ ? ask_for_seat() : open_session();
    } else if (std::holds_alternative<agent::StartWorkers>(action)) {
      start_workers();
    } else if (const auto* ask = std::get_if<agent::SignalWorkers>(&action)) {
      ask_workers(ask->signo);
    } else if (std::holds_alternative<agent::KillWorkers>(action)) {
      kill_workers();
    } else if (const auto* failed = std::get_if<agent::ReportFailure>(&action)) {
      say([session = session_, round = round(), failure = failed->failure](SimHost& host) {
        host.failed(session, round, failure);
      });
    } else if (std::holds_alternative<agent::ReportSuccess>(action)) {
      say([session = session_, round = round()](SimHost& host) { host.succeeded(session, round); });
    } else if (std::holds_alternative<agent::LeaveJob>(action)) {
      leaving_ = true;
      say([session = session_](SimHost& host) { host.left(session); });
    } else if (std::holds_alternative<agent::Finish>(action)) {
      return finish();
    }
  }
  look_again();
}

void SimNode::finish() {
  over_ = true;
  EXPECT_EQ(live_workers(), 0) << "the launcher ended before its workers";
  if (has_session_) say([session = session_](SimHost& host) { host.ended(session); });
}

void SimNode::look_again() {
  const Time look = cycle_.look_again_at();
  if (look == Time::max() || look == timer_at_) return;
  timer_at_ = look;
  world_.time.at(global(look), [this] {
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
  if (!has_session_) return;
  if (with_word) return say([session = session_](SimHost& host) { host.ended(session); });
  up_.block();  // for ever
  world_.host.watch(session_);
}

void SimNode::leave() {
  if (!over_) when_awake([this] { perform(cycle_.stop_requested(SIGTERM, local_now())); });
}

void SimNode::cut(bool up, bool down, milliseconds length) {
  if (over_) return;
  watch_network();
  if (up) up_.block();
  if (down) down_.block();
  world_.time.after(length, [this, up, down] {
    if (up) up_.unblock();
    if (down) down_.unblock();
  });
}

void SimNode::stall(milliseconds length) {
  if (over_) return;
  watch_network();
  awake_at_ = std::max(awake_at_, world_.time.now() + length);
}

}  // namespace ddprun::sim
