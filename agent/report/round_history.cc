#include "agent/report/round_history.h"

#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "agent/core/clock.h"
#include "base/duration.h"

namespace ddprun::agent {
namespace {

using EventLine = nlohmann::ordered_json;
using std::chrono::system_clock;

double unix_now() { return in_seconds(system_clock::now().time_since_epoch()); }

double unix_of(Time moment) { return unix_now() - in_seconds(now() - moment); }

EventLine begun(const char* event, std::int64_t round) {
  return {{"time", unix_now()}, {"event", event}, {"round", round}};
}

std::string written(const EventLine& json) {
  return json.dump(-1, ' ', true, EventLine::error_handler_t::replace);
}

// A rank that was ended because it stood still has failed for that.
bool is_standstill(const rendezvous::Failure& cause) {
  return cause.message.find("stood still: ") != std::string::npos;
}

std::string_view kind_of(const Ending& ending) {
  if (ending.succeeded) return "success";
  if (ending.signal != 0) return "signal";
  if (ending.drained || ending.stopped) return "operator";
  if (ending.session_error) return "rendezvous";
  if (ending.launcher_failed) return "launcher";
  if (!ending.cause || ending.cause->rank < 0) return "node_lost";
  return is_standstill(*ending.cause) ? "standstill" : "worker_failed";
}

void add_cause(EventLine& json, const rendezvous::Failure& cause, const std::string& text) {
  json["hostname"] = cause.hostname;
  if (cause.rank >= 0) json["rank"] = cause.rank;
  json["text"] = text;
}

}  // namespace

const WorkerProgress* with_fewest_steps(const std::vector<WorkerProgress>& workers) {
  const WorkerProgress* found = nullptr;
  for (const WorkerProgress& one : workers)
    if (one.steps > 0 && (found == nullptr || one.steps < found->steps)) found = &one;
  return found;
}

RoundHistory::RoundHistory(asio::io_context& loop,
                           std::function<std::vector<WorkerProgress>()> progress, Write write)
    : progress_(std::move(progress)), write_(std::move(write)), alarm_(loop, [this] { look(); }) {}

void RoundHistory::round_began(const Node& node, const Lifecycle& lifecycle,
                               std::chrono::nanoseconds waited) {
  const rendezvous::Round& round = lifecycle.round();
  round_ = last_round_ = round.number;
  written_steps_ = 0;
  EventLine json = begun("round", round_);
  json["run_id"] = node.run_id;
  json["hostname"] = node.hostname;
  json["node_rank"] = lifecycle.seat().node_rank;
  json["nodes"] = round.node_count;
  json["first_rank"] = lifecycle.seat().first_rank;
  json["workers"] = node.workers;
  json["world_size"] = round.world_size;
  json["waited"] = in_seconds(waited);
  write_(written(json));
  alarm_.set(now() + kEvery);
}

void RoundHistory::look() {
  write_steps();
  alarm_.set(now() + kEvery);
}

void RoundHistory::write_steps() {
  const std::vector<WorkerProgress> workers = progress_();
  const WorkerProgress* const one = with_fewest_steps(workers);
  if (one == nullptr || one->steps == written_steps_) return;
  written_steps_ = one->steps;
  EventLine json = begun("steps", round_);
  json["steps"] = one->steps;
  json["first_step"] = unix_of(one->first_step);
  json["last_step"] = unix_of(one->last_step);
  write_(written(json));
}

void RoundHistory::broken(const rendezvous::RoundBroken& message) {
  if (round_ == 0) return;
  EventLine json = begun("broken", round_);
  json["kind"] = is_standstill(message.cause) ? "standstill" : name_of(reason_of(message));
  add_cause(json, message.cause, message.cause.message);
  write_(written(json));
}

void RoundHistory::stands_still(const rendezvous::Verdict& verdict) {
  EventLine json = begun("standstill", round_);
  json["sentence"] = verdict.sentence;
  write_(written(json));
}

void RoundHistory::are_slow(const rendezvous::StragglerVerdict& verdict) {
  EventLine json = begun("stragglers", round_);
  json["sentence"] = verdict.sentence;
  write_(written(json));
}

void RoundHistory::went_on(std::chrono::nanoseconds length) {
  EventLine json = begun("went_on", round_);
  json["after"] = in_seconds(length);
  write_(written(json));
}

void RoundHistory::round_ended() {
  if (round_ == 0) return;
  alarm_.set(Time::max());
  write_steps();
  write_(written(begun("round_end", round_)));
  round_ = 0;
}

void RoundHistory::job_ended(const Ending& ending, const std::string& text) {
  round_ended();
  if (last_round_ == 0) return;
  EventLine json = begun("job_end", last_round_);
  json["kind"] = kind_of(ending);
  if (ending.cause)
    add_cause(json, *ending.cause, ending.cause->message);
  else if (!ending.succeeded)
    json["text"] = text;
  write_(written(json));
}

}  // namespace ddprun::agent
