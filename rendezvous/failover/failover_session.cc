#include "rendezvous/failover/failover_session.h"

#include <chrono>
#include <utility>
#include <variant>

#include "base/log.h"

namespace ddprun::rendezvous {

namespace {

Time time_now() { return std::chrono::steady_clock::now(); }

}  // namespace

FailoverSession::FailoverSession(asio::io_context& loop, const FailoverRules& rules,
                                 MessageHandler handler)
    : handler_(std::move(handler)),
      failover_(rules),
      alarm_(loop, [this] { perform(failover_.time_passed(time_now())); }),
      wait_(loop, [](const std::string& line) { log::warning(line); }) {}

// ---- what the agent wants ----

void FailoverSession::join(const NodeSpec& node) {
  perform(failover_.joined(node), [&](Session& session) { session.join(node); });
}

void FailoverSession::report_failure(std::int64_t round, const Failure& failure) {
  perform(failover_.failed(round, failure),
          [&](Session& session) { session.report_failure(round, failure); });
}

void FailoverSession::report_success(std::int64_t round) {
  perform(failover_.succeeded(round), [&](Session& session) { session.report_success(round); });
}

// The next host knows of no inquiry, and the workers may go on by then: nothing of it is kept.
void FailoverSession::suspect(std::int64_t round) {
  if (failover_.is_admitted() && session_) session_->suspect(round);
}

void FailoverSession::give_evidence(std::int64_t round, std::int64_t inquiry,
                                    const std::vector<RankEvidence>& evidence) {
  if (failover_.is_admitted() && session_) session_->give_evidence(round, inquiry, evidence);
}

void FailoverSession::report_replicas(const ReplicaReport& report) {
  if (failover_.is_admitted() && session_) session_->report_replicas(report);
}

void FailoverSession::give_notice(const Notice& notice) {
  if (failover_.is_admitted() && session_) session_->give_notice(notice);
}

void FailoverSession::answer_step(const StepAnswer& answer) {
  if (failover_.is_admitted() && session_) session_->answer_step(answer);
}

void FailoverSession::report_steps(const StepReport& report) {
  if (failover_.is_admitted() && session_) session_->report_steps(report);
}

void FailoverSession::leave(const Failure& reason) {
  perform(failover_.left(reason), [&](Session& session) { session.leave(reason); });
}

void FailoverSession::gone() {
  perform(failover_.gone(), [](Session& session) { session.gone(); });
}

std::optional<WaitStatus> FailoverSession::wait_status() const {
  return session_ ? session_->wait_status() : std::nullopt;
}

// ---- what the failover decides ----

void FailoverSession::on_message(const HostMessage& message) {
  perform(failover_.message(message, time_now()));
}

void FailoverSession::perform(const FailoverActions& actions, const Words& words) {
  alarm_.set(failover_.look_again_at());
  for (const FailoverAction& action : actions) {
    if (std::holds_alternative<PassOn>(action)) {
      words(*session_);
      continue;
    }
    std::visit(
        [&](const auto& one) {
          if constexpr (requires { this->perform_one(one); })
            this->perform_one(one);
          else
            act(action);
        },
        action);
  }
}

void FailoverSession::perform_one(const BeginWait& /*action*/) {
  wait_.begin([this](std::chrono::seconds waited) {
    return failover_.wait_line(waited, unreached().why, time_now());
  });
}

void FailoverSession::perform_one(const Log& action) {
  action.is_warning ? log::warning(action.line) : log::info(action.line);
}

void FailoverSession::end_sessions() {
  fenced_.reset();
  session_.reset();
}

}  // namespace ddprun::rendezvous
