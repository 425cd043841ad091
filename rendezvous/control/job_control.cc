#include "rendezvous/control/job_control.h"

#include <fmt/format.h>

#include <optional>
#include <utility>

#include "rendezvous/control/operator_verbs.h"

namespace ddprun::rendezvous {
namespace {

Time now() { return std::chrono::steady_clock::now(); }

std::int64_t unix_ms() {
  const auto since = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::milliseconds>(since).count();
}

}  // namespace

JobControl::JobControl(Host& host, std::string rdzv_id)
    : host_(host), rdzv_id_(std::move(rdzv_id)) {
  host_.watch = [this](const Outcome& outcome) { happened(outcome); };
  host_.on_outcome = [this](const Outcome& outcome) { on_outcome(outcome); };
  host_.on_verdict = [this](const Verdict& verdict) { log_.note(verdict, unix_ms()); };
}

JobControl::JobControl(Host& host, const JobControl& finished)
    : JobControl(host, finished.rdzv_id_) {
  log_ = finished.log_;
  end_ = finished.end_;
}

JobControl::~JobControl() {
  host_.watch = nullptr;
  host_.on_outcome = nullptr;
  host_.on_verdict = nullptr;
}

JobSnapshot JobControl::status() const {
  JobSnapshot status = status_of(host_.membership(), log_, now());
  status.job = rdzv_id_;
  for (NodeSnapshot& node : status.nodes) node.hosts = host_.is_here(node.session);
  return status;
}

template <typename Verb>
Result<std::string> JobControl::obey(Verb verb, std::string done) {
  std::optional<Error> error;
  host_.obey([&](Membership& membership, Time at) {
    Result<Outcome> outcome = verb(membership, at);
    if (!outcome) error = outcome.error();
    return outcome ? *std::move(outcome) : Outcome();
  });
  if (error) return *error;
  return done;
}

Result<std::string> JobControl::drain(const std::string& node, std::chrono::milliseconds deadline) {
  const auto session = find_node(host_.membership(), node);
  if (!session) return session.error();
  if (host_.is_here(*session))
    return Error(ErrorCode::kRejected,
                 fmt::format("node {} hosts the rendezvous, and the job would end with it", node));
  return obey([&](Membership& membership,
                  Time at) { return rendezvous::drain(membership, *session, deadline, at); },
              fmt::format("node {} is told to leave; the others go on", node));
}

// The node may be a spare that can sit down now.
Result<std::string> JobControl::forgive(const std::string& node) {
  Result<std::string> done = std::string();
  host_.obey([&](Membership& membership, Time at) {
    done = rendezvous::forgive(membership, node);
    return membership.tick(at);
  });
  return done;
}

Result<std::string> JobControl::resize(int min_nodes, int max_nodes) {
  return obey([&](Membership& membership,
                  Time at) { return rendezvous::resize(membership, min_nodes, max_nodes, at); },
              fmt::format("rounds have {} to {} nodes from now on", min_nodes, max_nodes));
}

Result<std::string> JobControl::stop(const std::string& by) {
  return obey([&](Membership& membership, Time at) { return rendezvous::stop(membership, by, at); },
              "the job was stopped");
}

Result<std::string> JobControl::save_checkpoint() {
  if (!host_.want_checkpoint())
    return Error(ErrorCode::kRejected,
                 "no round runs, or its ranks are told to save already: look at status");
  return std::string("all ranks are told to save at the end of one step, and go on");
}

void JobControl::give_up(const std::string& reason) {
  host_.obey([&](Membership& membership, Time at) {
    return membership.stopped({.succeeded = false, .cause = {.message = reason}}, at);
  });
}

// ddpctl asks again every 30 s: those of its questions before would stay until the job's end.
void JobControl::wait(Waiter waiter, std::function<bool()> is_gone) {
  if (end_) return waiter(*end_);
  std::erase_if(waiters_, [](const Waiting& one) { return one.is_gone && one.is_gone(); });
  waiters_.push_back({std::move(waiter), std::move(is_gone)});
}

void JobControl::happened(const Outcome& outcome) {
  log_.note(outcome, now(), unix_ms());
  if (outcome.ended && at_end) at_end();
}

void JobControl::on_outcome(const Outcome& outcome) {
  if (!outcome.ended) return;
  end_ = {outcome.ended->succeeded, host_.membership().end_text()};
  for (const Waiting& one : std::exchange(waiters_, {})) one.waiter(*end_);
}

}  // namespace ddprun::rendezvous
