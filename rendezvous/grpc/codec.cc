#include "rendezvous/grpc/codec.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>
#include <string_view>
#include <utility>

#include "rendezvous/core/strikes.h"
#include "rendezvous/grpc/cut_text.h"

namespace ddprun::rendezvous {
namespace {

// One visitor made of several lambdas, for std::visit.
template <typename... Visitors>
struct Overloaded : Visitors... {
  using Visitors::operator()...;
};
template <typename... Visitors>
Overloaded(Visitors...) -> Overloaded<Visitors...>;

// Cuts, so that a long text never keeps a failure from being reported: the host would refuse it.
v4::Failure encode_failure(const Failure& failure) {
  v4::Failure message;
  message.set_hostname(cut(failure.hostname, kMaxNameBytes));
  message.set_rank(failure.rank);
  message.set_local_rank(failure.local_rank);
  message.set_exit_code(failure.exit_code);
  message.set_message(cut(failure.message, kMaxTextBytes));
  if (failure.noticed_after) message.set_noticed_after_us(failure.noticed_after->count());
  message.set_words(cut(failure.words, kMaxNameBytes));
  if (failure.step) message.set_step(*failure.step);
  message.set_is_step_of_run(failure.is_step_of_run);
  message.set_is_hang(failure.is_hang);
  message.set_ends_job(failure.ends_job);
  message.set_fault(static_cast<int>(failure.fault));
  return message;
}

v4::Ended encode_end(const JobEnded& ended) {
  v4::Ended message;
  message.set_succeeded(ended.succeeded);
  *message.mutable_cause() = encode_failure(ended.cause);
  message.set_is_stopped(ended.is_stopped);
  message.set_strikes(ended.strikes);
  if (!ended.no_progress) return message;
  v4::NoProgress& why = *message.mutable_no_progress();
  why.set_attempts(ended.no_progress->attempts);
  why.set_sentence(cut(ended.no_progress->sentence, kMaxTextBytes));
  for (const FailedAttempt& attempt : ended.no_progress->last) {
    v4::FailedAttempt& one = *why.add_last();
    one.set_round(attempt.round);
    *one.mutable_cause() = encode_failure(attempt.cause);
    // All of them must fit one message.
    one.mutable_cause()->set_message(cut(attempt.cause.message, kMaxNameBytes));
  }
  return message;
}

// Cuts the hostname only. A cut id, role or address would name something else: it is refused.
v4::Join encode_spec(const NodeSpec& spec) {
  v4::Join message;
  message.set_node_id(spec.node_id);
  message.set_hostname(cut(spec.hostname, kMaxNameBytes));
  message.set_local_world_size(spec.local_world_size);
  message.set_role(spec.role);
  message.set_node_rank(spec.node_rank);
  message.set_store_address(spec.store_address);
  message.set_store_port(spec.store_port);
  message.set_worker_store_port(spec.worker_store_port);
  message.set_max_restarts(spec.max_restarts);
  message.set_restart_window_ms(spec.restart_window.count());
  message.set_backoff_ms(spec.backoff.count());
  message.set_backoff_max_ms(spec.backoff_max.count());
  message.set_rank_is_preferred(spec.rank_is_preferred);
  message.set_min_nodes(spec.min_nodes);
  message.set_max_nodes(spec.max_nodes);
  message.set_answers_looks(spec.answers_looks);
  message.set_compares_replicas(spec.compares_replicas);
  message.set_hears_stragglers(spec.hears_stragglers);
  message.set_most_without_progress(spec.most_without_progress);
  message.set_takes_step_orders(spec.takes_step_orders);
  message.set_most_strikes(spec.strike_rules.most);
  message.set_strike_half_life_ms(spec.strike_rules.half_life.count());
  message.set_strikes(spec.strikes);
  v4::RoundSettings& settings = *message.mutable_settings();
  settings.set_join_timeout_ms(spec.settings.join_timeout.count());
  settings.set_last_call_ms(spec.settings.last_call.count());
  settings.set_resize_wait_ms(spec.settings.resize_wait.count());
  settings.set_resize_interval_ms(spec.settings.resize_interval.count());
  settings.set_node_unit(spec.settings.node_unit);
  return message;
}

v4::Round encode_round(const Round& round) {
  v4::Round message;
  message.set_number(round.number);
  message.set_restart_count(round.restart_count);
  message.set_world_size(round.world_size);
  message.set_master_addr(round.master_addr);
  message.set_master_port(round.master_port);
  message.set_node_count(round.node_count);
  message.set_master_hostname(cut(round.master_hostname, kMaxNameBytes));
  message.set_strikes(round.strikes);
  return message;
}

v4::Seat encode_seat(const Seat& seat) {
  v4::Seat message;
  message.set_node_rank(seat.node_rank);
  message.set_first_rank(seat.first_rank);
  message.set_role_first_rank(seat.role_first_rank);
  message.set_role_world_size(seat.role_world_size);
  return message;
}

// A peer may send any number. A very long wait would overflow a time. A year is long enough.
std::chrono::milliseconds decode_wait(std::int64_t milliseconds) {
  constexpr std::chrono::milliseconds kLongest = std::chrono::hours(24 * 365);
  return std::clamp(std::chrono::milliseconds(milliseconds), std::chrono::milliseconds(0),
                    kLongest);
}

std::optional<Error> too_long(std::string_view field, const std::string& text, std::size_t max) {
  if (text.size() <= max) return std::nullopt;
  return Error(ErrorCode::kLimit,
               fmt::format("{} has {} bytes, more than {}", field, text.size(), max));
}

Result<std::uint16_t> decode_port(std::uint32_t port) {
  if (port > std::numeric_limits<std::uint16_t>::max())
    return Error(ErrorCode::kProtocol, fmt::format("{} is no port", port));
  return static_cast<std::uint16_t>(port);
}

Result<Failure> decode_failure(const v4::Failure& message) {
  if (auto error = too_long("hostname", message.hostname(), kMaxNameBytes)) return *error;
  if (auto error = too_long("message", message.message(), kMaxTextBytes)) return *error;
  if (auto error = too_long("words", message.words(), kMaxNameBytes)) return *error;
  Failure failure{.hostname = message.hostname(),
                  .rank = message.rank(),
                  .local_rank = message.local_rank(),
                  .exit_code = message.exit_code(),
                  .message = message.message()};
  // A peer may send any number; what it says is shown and summed up.
  constexpr std::int64_t kMost = std::chrono::microseconds(std::chrono::hours(24)).count();
  if (message.has_noticed_after_us())
    failure.noticed_after =
        std::chrono::microseconds(std::clamp<std::int64_t>(message.noticed_after_us(), 0, kMost));
  failure.words = message.words();
  if (message.has_step()) failure.step = std::max<std::int64_t>(message.step(), 0);
  failure.is_step_of_run = message.is_step_of_run();
  failure.is_hang = message.is_hang();
  failure.ends_job = message.ends_job();
  const bool is_known =
      message.fault() >= 0 && message.fault() <= static_cast<int>(NodeFault::kExitCode);
  if (is_known) failure.fault = static_cast<NodeFault>(message.fault());
  return failure;
}

Result<NoProgress> decode_no_progress(const v4::NoProgress& message) {
  if (auto error = too_long("sentence", message.sentence(), kMaxTextBytes)) return *error;
  if (static_cast<std::size_t>(message.last_size()) > kMostShownAttempts)
    return Error(ErrorCode::kLimit,
                 fmt::format("{} attempts, more than {}", message.last_size(), kMostShownAttempts));
  NoProgress why{.attempts = message.attempts(), .sentence = message.sentence()};
  for (const v4::FailedAttempt& attempt : message.last()) {
    auto cause = decode_failure(attempt.cause());
    if (!cause) return cause.error();
    why.last.push_back({.round = attempt.round(), .cause = *std::move(cause)});
  }
  return why;
}

Result<DownMessage> decode_end(const v4::Ended& message) {
  auto cause = decode_failure(message.cause());
  if (!cause) return cause.error();
  if (auto error = too_long("strikes", message.strikes(), kMostStrikesText)) return *error;
  JobEnded ended{.succeeded = message.succeeded(),
                 .cause = *std::move(cause),
                 .is_stopped = message.is_stopped()};
  if (message.has_no_progress()) {
    auto why = decode_no_progress(message.no_progress());
    if (!why) return why.error();
    ended.no_progress = *std::move(why);
  }
  ended.strikes = message.strikes();
  return DownMessage(std::move(ended));
}

// Two of the times may be 0: a running round is then broken at once.
RoundSettings decode_settings(const v4::RoundSettings& message) {
  return {.join_timeout = decode_wait(message.join_timeout_ms()),
          .last_call = decode_wait(message.last_call_ms()),
          .resize_wait = decode_wait(message.resize_wait_ms()),
          .resize_interval = decode_wait(message.resize_interval_ms()),
          .node_unit = std::max(message.node_unit(), 1)};
}

// Does not check the number of workers and the rank: Membership does, and says what would be right.
// An id that was not sent reads as empty: proto3 does not tell these apart.
Result<NodeSpec> decode_spec(const v4::Join& message) {
  if (message.node_id().empty()) return Error(ErrorCode::kProtocol, "node_id is empty");
  using Name = std::pair<std::string_view, const std::string*>;
  const std::array names{Name{"node_id", &message.node_id()}, Name{"hostname", &message.hostname()},
                         Name{"role", &message.role()},
                         Name{"store_address", &message.store_address()}};
  for (const auto& [field, name] : names)
    if (auto error = too_long(field, *name, kMaxNameBytes)) return *error;
  if (auto error = too_long("strikes", message.strikes(), kMostStrikesText)) return *error;
  const auto port = decode_port(message.store_port());
  const auto worker_port = decode_port(message.worker_store_port());
  if (!port || !worker_port) return port ? worker_port.error() : port.error();
  NodeSpec spec;
  spec.node_id = message.node_id();
  spec.hostname = message.hostname();
  spec.local_world_size = message.local_world_size();
  spec.role = message.role();
  spec.node_rank = message.node_rank();
  spec.store_address = message.store_address();
  spec.store_port = *port;
  spec.worker_store_port = *worker_port;
  spec.max_restarts = message.max_restarts();
  spec.restart_window = decode_wait(message.restart_window_ms());
  spec.backoff = decode_wait(message.backoff_ms());
  spec.backoff_max = decode_wait(message.backoff_max_ms());
  spec.rank_is_preferred = message.rank_is_preferred();
  spec.min_nodes = message.min_nodes();
  spec.max_nodes = message.max_nodes();
  spec.answers_looks = message.answers_looks();
  spec.compares_replicas = message.compares_replicas();
  spec.hears_stragglers = message.hears_stragglers();
  spec.most_without_progress = std::max(message.most_without_progress(), 0);
  spec.takes_step_orders = message.takes_step_orders();
  spec.strike_rules = {.most = std::clamp(message.most_strikes(), 0, kMostThreshold),
                       .half_life = decode_wait(message.strike_half_life_ms())};
  spec.strikes = message.strikes();
  if (message.has_settings()) spec.settings = decode_settings(message.settings());
  return spec;
}

Result<NodeMessage> decode_resumed(const v4::ResumeRequest& message) {
  auto spec = decode_spec(message.join());
  if (!spec) return spec.error();
  auto cause = decode_failure(message.cause());
  if (!cause) return cause.error();
  const bool is_known =
      message.state() >= 0 && message.state() <= static_cast<std::int32_t>(NodeState::kStopping);
  if (!is_known || message.round() < 0 || message.round() > kMostRounds)
    return Error(ErrorCode::kProtocol,
                 fmt::format("a node in round {} with state {}", message.round(), message.state()));
  return NodeMessage(ResumeRequest{.spec = *std::move(spec),
                                   .connection = message.connection(),
                                   .round = message.round(),
                                   .seat = message.seat(),
                                   .node_count = message.node_count(),
                                   .restarts = std::clamp(message.restarts(), 0, kMostRestarts),
                                   .state = static_cast<NodeState>(message.state()),
                                   .cause = *std::move(cause),
                                   .is_resize = message.is_resize()});
}

Result<DownMessage> decode_published(const v4::Published& message) {
  const v4::Round& round = message.round();
  const v4::Seat& seat = message.seat();
  const auto port = decode_port(round.master_port());
  if (!port) return port.error();
  if (auto error = too_long("master_hostname", round.master_hostname(), kMaxNameBytes))
    return *error;
  if (auto error = too_long("strikes", round.strikes(), kMostStrikesText)) return *error;
  if (seat.node_rank() < 0 || seat.node_rank() >= round.node_count())
    return Error(ErrorCode::kProtocol,
                 fmt::format("node rank {} of {}", seat.node_rank(), round.node_count()));
  return DownMessage(RoundPublished{.round = {.number = round.number(),
                                              .restart_count = round.restart_count(),
                                              .world_size = round.world_size(),
                                              .node_count = round.node_count(),
                                              .master_addr = round.master_addr(),
                                              .master_port = *port,
                                              .master_hostname = round.master_hostname(),
                                              .strikes = round.strikes()},
                                    .seat = {.node_rank = seat.node_rank(),
                                             .first_rank = seat.first_rank(),
                                             .role_first_rank = seat.role_first_rank(),
                                             .role_world_size = seat.role_world_size()}});
}

Await decode_awaits(std::int32_t awaits) {
  const bool known = awaits >= 0 && awaits <= static_cast<std::int32_t>(Await::kResize);
  return known ? static_cast<Await>(awaits) : Await::kNodes;
}

Result<DownMessage> decode_lease(const v4::Lease& message) {
  if (message.stamp_ms() < 0 || message.length_ms() <= 0 || message.heartbeat_every_ms() <= 0)
    return Error(
        ErrorCode::kProtocol,
        fmt::format("a lease of {} ms from {} ms on with a heartbeat every {} ms",
                    message.length_ms(), message.stamp_ms(), message.heartbeat_every_ms()));
  if (auto error = too_long("missing", message.wait_status().missing(), kMaxNameBytes))
    return *error;
  LeaseGrant grant{.stamp = std::chrono::milliseconds(message.stamp_ms()),
                   .lease = {.length = decode_wait(message.length_ms()),
                             .heartbeat_every = decode_wait(message.heartbeat_every_ms())},
                   .may_return = message.may_return(),
                   .host_returns = message.host_returns(),
                   .takes_evidence = message.takes_evidence(),
                   .takes_replicas = message.takes_replicas(),
                   .takes_steps = message.takes_steps(),
                   .takes_notices = message.takes_notices()};
  if (message.has_wait_status()) {
    const v4::WaitStatus& wait_status = message.wait_status();
    grant.wait_status = {.awaits = decode_awaits(wait_status.awaits()),
                         .have = wait_status.have(),
                         .min_nodes = wait_status.min_nodes(),
                         .max_nodes = wait_status.max_nodes(),
                         .ends_in = decode_wait(wait_status.ends_in_ms()),
                         .missing = wait_status.missing()};
  }
  return DownMessage(std::move(grant));
}

// A newer host may refuse with a code that we do not know. Then we only know that it said no.
ErrorCode decode_code(std::int32_t code) {
  const bool known = code >= 0 && code <= static_cast<std::int32_t>(ErrorCode::kLostLeadership);
  return known ? static_cast<ErrorCode>(code) : ErrorCode::kRejected;
}

}  // namespace

v4::FromNode encode(const NodeMessage& said) {
  v4::FromNode message;
  const auto fill = Overloaded{
      [&](const NodeSpec& spec) { *message.mutable_join() = encode_spec(spec); },
      [&](const WorkerFailed& failed) {
        message.mutable_failed()->set_round(failed.round);
        *message.mutable_failed()->mutable_failure() = encode_failure(failed.failure);
      },
      [&](const NodeSucceeded& node) { message.mutable_succeeded()->set_round(node.round); },
      [&](const Leave& leave) {
        *message.mutable_leave()->mutable_reason() = encode_failure(leave.reason);
      },
      [&](const Gone&) { message.mutable_gone(); },
      [&](const ResumeRequest& resumed) {
        v4::ResumeRequest& fields = *message.mutable_resumed();
        *fields.mutable_join() = encode_spec(resumed.spec);
        fields.set_round(resumed.round);
        fields.set_seat(resumed.seat);
        fields.set_node_count(resumed.node_count);
        fields.set_state(static_cast<std::int32_t>(resumed.state));
        *fields.mutable_cause() = encode_failure(resumed.cause);
        fields.set_is_resize(resumed.is_resize);
        fields.set_connection(resumed.connection);
        fields.set_restarts(resumed.restarts);
      },
      [&](const Heartbeat& heartbeat) {
        message.mutable_heartbeat()->set_stamp_ms(heartbeat.stamp.count());
      },
      [&](const Suspicion& suspicion) { message.mutable_suspicion()->set_round(suspicion.round); },
      [&](const Evidence& evidence) { *message.mutable_evidence() = encode_evidence(evidence); },
      [&](const ReplicaReport& report) { *message.mutable_replicas() = encode_replicas(report); },
      [&](const StepReport& report) { *message.mutable_steps() = encode_steps(report); },
      [&](const Notice& notice) { *message.mutable_notice() = encode_notice(notice); },
      [&](const StepAnswer& answer) { *message.mutable_step_answer() = encode_answer(answer); },
      [&](const Proof& proof) {
        message.mutable_proof()->set_proof(proof.bytes);
        for (const std::string& channel : proof.channels)
          message.mutable_proof()->add_channels(channel);
      }};
  std::visit(fill, said);
  return message;
}

v4::ToNode encode(const HostMessage& said) {
  v4::ToNode message;
  const auto fill = Overloaded{
      [&](const RoundPublished& published) {
        *message.mutable_published()->mutable_round() = encode_round(published.round);
        *message.mutable_published()->mutable_seat() = encode_seat(published.seat);
      },
      [&](const RoundBroken& broken) {
        message.mutable_broken()->set_round(broken.round);
        message.mutable_broken()->set_is_resize(broken.is_resize);
        *message.mutable_broken()->mutable_cause() = encode_failure(broken.cause);
      },
      [&](const JobEnded& ended) { *message.mutable_ended() = encode_end(ended); },
      [&](const SessionLost& lost) {
        message.mutable_refused()->set_code(static_cast<std::int32_t>(lost.error.code()));
        message.mutable_refused()->set_message(cut(lost.error.message(), kMaxTextBytes));
      },
      [&](const Drain& drain) { message.mutable_drain()->set_deadline_ms(drain.deadline.count()); },
      [&](const Look& look) {
        message.mutable_look()->set_round(look.round);
        message.mutable_look()->set_inquiry(look.inquiry);
      },
      [&](const StandstillVerdict& verdict) {
        *message.mutable_verdict() = encode_verdict(verdict);
      },
      [&](const ReplicaQuestion& question) {
        *message.mutable_replica_question() = encode_replica_question(question);
      },
      [&](const ReplicaVerdict& verdict) {
        *message.mutable_replica_verdict() = encode_replica_verdict(verdict);
      },
      [&](const StragglerVerdict& verdict) {
        *message.mutable_straggler_verdict() = encode_straggler_verdict(verdict);
      },
      [&](const StepOrder& order) { *message.mutable_step_order() = encode_step_order(order); }};
  std::visit(fill, said);
  return message;
}

v4::ToNode encode(const LeaseGrant& grant) {
  v4::ToNode message;
  v4::Lease& lease = *message.mutable_lease();
  lease.set_stamp_ms(grant.stamp.count());
  lease.set_length_ms(grant.lease.length.count());
  lease.set_heartbeat_every_ms(grant.lease.heartbeat_every.count());
  lease.set_may_return(grant.may_return);
  lease.set_host_returns(grant.host_returns);
  lease.set_takes_evidence(grant.takes_evidence);
  lease.set_takes_replicas(grant.takes_replicas);
  lease.set_takes_steps(grant.takes_steps);
  lease.set_takes_notices(grant.takes_notices);
  if (!grant.wait_status) return message;
  v4::WaitStatus& wait_status = *lease.mutable_wait_status();
  wait_status.set_have(grant.wait_status->have);
  wait_status.set_min_nodes(grant.wait_status->min_nodes);
  wait_status.set_max_nodes(grant.wait_status->max_nodes);
  wait_status.set_awaits(static_cast<std::int32_t>(grant.wait_status->awaits));
  wait_status.set_ends_in_ms(grant.wait_status->ends_in.count());
  wait_status.set_missing(grant.wait_status->missing);
  return message;
}

Result<NodeMessage> decode(const v4::FromNode& message) {
  switch (message.kind_case()) {
    case v4::FromNode::kJoin: {
      auto spec = decode_spec(message.join());
      if (!spec) return spec.error();
      return NodeMessage(*std::move(spec));
    }
    case v4::FromNode::kResumed:
      return decode_resumed(message.resumed());
    case v4::FromNode::kFailed: {
      auto failure = decode_failure(message.failed().failure());
      if (!failure) return failure.error();
      return NodeMessage(WorkerFailed{message.failed().round(), *std::move(failure)});
    }
    case v4::FromNode::kSucceeded:
      return NodeMessage(NodeSucceeded{message.succeeded().round()});
    case v4::FromNode::kLeave: {
      auto reason = decode_failure(message.leave().reason());
      if (!reason) return reason.error();
      return NodeMessage(Leave{*std::move(reason)});
    }
    case v4::FromNode::kGone:
      return NodeMessage(Gone{});
    case v4::FromNode::kHeartbeat:
      return NodeMessage(Heartbeat{std::chrono::milliseconds(message.heartbeat().stamp_ms())});
    case v4::FromNode::kSuspicion:
      return NodeMessage(Suspicion{message.suspicion().round()});
    case v4::FromNode::kEvidence:
      return NodeMessage(decode_evidence(message.evidence()));
    case v4::FromNode::kReplicas:
      return NodeMessage(decode_replicas(message.replicas()));
    case v4::FromNode::kSteps:
      return NodeMessage(decode_steps(message.steps()));
    case v4::FromNode::kNotice:
      return NodeMessage(decode_notice(message.notice()));
    case v4::FromNode::kStepAnswer:
      return NodeMessage(decode_answer(message.step_answer()));
    case v4::FromNode::kProof:
      return decode_proof<NodeMessage>(message.proof());
    // A kind that only a newer version has is an unknown field to protobuf, which skips it.
    case v4::FromNode::KIND_NOT_SET:
      break;
  }
  return Error(ErrorCode::kProtocol, "a message of a kind that this version does not know");
}

Result<DownMessage> decode(const v4::ToNode& message) {
  switch (message.kind_case()) {
    case v4::ToNode::kPublished:
      return decode_published(message.published());
    case v4::ToNode::kBroken: {
      auto cause = decode_failure(message.broken().cause());
      if (!cause) return cause.error();
      return DownMessage(
          RoundBroken{message.broken().round(), *std::move(cause), message.broken().is_resize()});
    }
    case v4::ToNode::kEnded:
      return decode_end(message.ended());
    case v4::ToNode::kRefused:
      return DownMessage(
          SessionLost{{decode_code(message.refused().code()), message.refused().message()}});
    case v4::ToNode::kLease:
      return decode_lease(message.lease());
    case v4::ToNode::kDrain:
      return DownMessage(Drain{decode_wait(message.drain().deadline_ms())});
    case v4::ToNode::kLook:
      return DownMessage(Look{message.look().round(), message.look().inquiry()});
    case v4::ToNode::kVerdict:
      return DownMessage(decode_verdict(message.verdict()));
    case v4::ToNode::kReplicaQuestion:
      return DownMessage(decode_replica_question(message.replica_question()));
    case v4::ToNode::kReplicaVerdict:
      return DownMessage(decode_replica_verdict(message.replica_verdict()));
    case v4::ToNode::kStragglerVerdict:
      return DownMessage(decode_straggler_verdict(message.straggler_verdict()));
    case v4::ToNode::kStepOrder:
      return DownMessage(decode_step_order(message.step_order()));
    case v4::ToNode::kChallenge:
      return decode_secret<DownMessage, Challenge>("nonce", message.challenge().nonce());
    case v4::ToNode::kAdmitted:
      return decode_secret<DownMessage, HostProof>("proof", message.admitted().proof());
    case v4::ToNode::KIND_NOT_SET:
      break;
  }
  return Error(ErrorCode::kProtocol, "a message of a kind that this version does not know");
}

}  // namespace ddprun::rendezvous
