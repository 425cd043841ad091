#include "rendezvous/failover/elected_session.h"

#include <chrono>
#include <string>
#include <utility>
#include <variant>

#include "base/assert.h"

namespace ddprun::rendezvous {

ElectedSession::ElectedSession(asio::io_context& loop, ElectionOptions options, Callbacks callbacks,
                               MessageHandler handler)
    : FailoverSession(loop,
                      {.policy = HostPolicy::kElectedHost, .keeps_workers = callbacks.resumes},
                      std::move(handler)),
      callbacks_(std::move(callbacks)),
      election_(loop, std::move(options), handlers()) {
  perform(failover().start());
  election_.start();
}

// A session with the rendezvous of this process asks the election whether it leads.
ElectedSession::~ElectedSession() { end_sessions(); }

Election::Handlers ElectedSession::handlers() {
  return {
      .own_address = callbacks_.own_address,
      .lead = [this](JobRecord record) { perform(failover().elected(std::move(record))); },
      .follow =
          [this](const Leader& leader) {
            leader_ = leader;
            perform(failover().leader_found(leader.hostname,
                                            session() ? session()->lease_ends() : Time{}));
          },
      .lost_leadership =
          [this](const std::string& why, bool was_suspended) {
            perform(
                failover().lost_leadership(why, was_suspended, std::chrono::steady_clock::now()));
          },
      .has_round = [this] { return callbacks_.resumes && failover().memory().is_round_whole(); },
      .job_over = [this](bool succeeded) { perform(failover().job_over(succeeded)); },
      .failed = [this](const Error& error) { perform(failover().gave_up(error)); },
      .leads_until = callbacks_.workers_until};
}

UnreachedHost ElectedSession::unreached() const {
  if (failover().is_admitted()) return {};
  UnreachedHost told = election_.unreached();
  if (told.why.empty() && session()) told.why = session()->unreached().why;
  if (told.why.empty()) told.why = failover().last_loss();
  return told;
}

// ---- what the failover decides ----

std::unique_ptr<Session> ElectedSession::open() {
  return callbacks_.follow(
      leader_, failover().workers_until().value_or(Time{}),
      [this] { perform(failover().admitted(std::chrono::steady_clock::now())); },
      [this](const HostMessage& message) { on_message(message); });
}

std::unique_ptr<Session> ElectedSession::host_here(JobRecord record) {
  return callbacks_.lead(
      std::move(record),
      [this](JobRecord next, std::function<void()> recorded) {
        election_.publish(std::move(next), std::move(recorded));
      },
      [this] { return election_.may_grant(); },
      [this](const HostMessage& message) { on_message(message); });
}

void ElectedSession::act(const FailoverAction& action) {
  std::visit(
      [this](const auto& one) {
        if constexpr (requires { perform_one(one); })
          perform_one(one);
        else
          DDPRUN_UNREACHABLE("an action of the other policy");
      },
      action);
}

}  // namespace ddprun::rendezvous
