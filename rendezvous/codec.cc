#include "rendezvous/codec.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>
#include <string_view>
#include <utility>

namespace ddprun::rendezvous {
namespace {

// One visitor made of several lambdas, for std::visit.
template <typename... Visitors>
struct Overloaded : Visitors... {
  using Visitors::operator()...;
};
template <typename... Visitors>
Overloaded(Visitors...) -> Overloaded<Visitors...>;

// At most `max` bytes of the text. The cut goes back over the bytes that continue a UTF-8 character
// (10xxxxxx), so that no character is cut in two.
std::string cut(const std::string& text, std::size_t max) {
  if (text.size() <= max) return text;
  std::size_t end = max;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0U) == 0x80U) --end;
  return text.substr(0, end);
}

// Cuts, so that a long text never keeps a failure from being reported: the host would refuse it.
v1::Failure encode_failure(const Failure& failure) {
  v1::Failure message;
  message.set_hostname(cut(failure.hostname, kMaxNameBytes));
  message.set_rank(failure.rank);
  message.set_local_rank(failure.local_rank);
  message.set_exit_code(failure.exit_code);
  message.set_message(cut(failure.message, kMaxTextBytes));
  return message;
}

// Cuts the hostname only, which is just for people. A cut id, role or address would name something
// else, so the host refuses one that is too long.
v1::Join encode_spec(const NodeSpec& spec) {
  v1::Join message;
  message.set_node_id(spec.node_id);
  message.set_hostname(cut(spec.hostname, kMaxNameBytes));
  message.set_local_world_size(spec.local_world_size);
  message.set_role(spec.role);
  message.set_node_rank(spec.node_rank);
  message.set_store_address(spec.store_address);
  message.set_store_port(spec.store_port);
  message.set_max_restarts(spec.max_restarts);
  message.set_restart_window_ms(spec.restart_window.count());
  message.set_backoff_ms(spec.backoff.count());
  message.set_backoff_max_ms(spec.backoff_max.count());
  message.set_min_nodes(spec.min_nodes);
  message.set_max_nodes(spec.max_nodes);
  return message;
}

v1::Round encode_round(const Round& round) {
  v1::Round message;
  message.set_number(round.number);
  message.set_restart_count(round.restart_count);
  message.set_world_size(round.world_size);
  message.set_master_addr(round.master_addr);
  message.set_master_port(round.master_port);
  for (const Seat& seat : round.seats) {
    v1::Seat& to = *message.add_seats();
    to.set_node_id(seat.node_id);
    to.set_hostname(seat.hostname);
    to.set_role(seat.role);
    to.set_local_world_size(seat.local_world_size);
    to.set_first_rank(seat.first_rank);
    to.set_role_first_rank(seat.role_first_rank);
    to.set_role_world_size(seat.role_world_size);
  }
  return message;
}

// A peer may send any number. A wait below zero makes no sense, and a very long one would overflow
// when it is added to a time. A year is long enough for every job.
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

// Protobuf has no 16-bit number, so a peer can send more than a port.
Result<std::uint16_t> decode_port(std::uint32_t port) {
  if (port > std::numeric_limits<std::uint16_t>::max())
    return Error(ErrorCode::kProtocol, fmt::format("{} is no port", port));
  return static_cast<std::uint16_t>(port);
}

Result<Failure> decode_failure(const v1::Failure& message) {
  if (auto error = too_long("hostname", message.hostname(), kMaxNameBytes)) return *error;
  if (auto error = too_long("message", message.message(), kMaxTextBytes)) return *error;
  return Failure{.hostname = message.hostname(),
                 .rank = message.rank(),
                 .local_rank = message.local_rank(),
                 .exit_code = message.exit_code(),
                 .message = message.message()};
}

// Does not check the number of workers and the rank: Membership does, and says what would be right.
// An id that was not sent reads as empty: proto3 does not tell these apart.
Result<NodeMessage> decode_spec(const v1::Join& message) {
  if (message.node_id().empty()) return Error(ErrorCode::kProtocol, "node_id is empty");
  using Name = std::pair<std::string_view, const std::string*>;
  const std::array names{Name{"node_id", &message.node_id()}, Name{"hostname", &message.hostname()},
                         Name{"role", &message.role()},
                         Name{"store_address", &message.store_address()}};
  for (const auto& [field, name] : names)
    if (auto error = too_long(field, *name, kMaxNameBytes)) return *error;
  const auto port = decode_port(message.store_port());
  if (!port) return port.error();
  NodeSpec spec;
  spec.node_id = message.node_id();
  spec.hostname = message.hostname();
  spec.local_world_size = message.local_world_size();
  spec.role = message.role();
  spec.node_rank = message.node_rank();
  spec.store_address = message.store_address();
  spec.store_port = *port;
  spec.max_restarts = message.max_restarts();
  spec.restart_window = decode_wait(message.restart_window_ms());
  spec.backoff = decode_wait(message.backoff_ms());
  spec.backoff_max = decode_wait(message.backoff_max_ms());
  spec.min_nodes = message.min_nodes();
  spec.max_nodes = message.max_nodes();
  return NodeMessage(std::move(spec));
}

// Does not check names: they come from the host, and kMaxDownBytes is a limit for all of them.
Result<Round> decode_round(const v1::Round& message) {
  const auto port = decode_port(message.master_port());
  if (!port) return port.error();
  Round round;
  round.number = message.number();
  round.restart_count = message.restart_count();
  round.world_size = message.world_size();
  round.master_addr = message.master_addr();
  round.master_port = *port;
  for (const v1::Seat& seat : message.seats())
    round.seats.push_back({.node_id = seat.node_id(),
                           .hostname = seat.hostname(),
                           .role = seat.role(),
                           .local_world_size = seat.local_world_size(),
                           .first_rank = seat.first_rank(),
                           .role_first_rank = seat.role_first_rank(),
                           .role_world_size = seat.role_world_size()});
  return round;
}

Result<std::optional<HostMessage>> decode_published(const v1::Published& message) {
  auto round = decode_round(message.round());
  if (!round) return round.error();
  // The agent uses it as an index.
  if (message.seat() < 0 || message.seat() >= std::ssize(round->seats))
    return Error(ErrorCode::kProtocol,
                 fmt::format("seat {} of {}", message.seat(), round->seats.size()));
  return std::optional<HostMessage>(RoundPublished{*std::move(round), message.seat()});
}

// A newer host may refuse with a code that we do not know. Then we only know that it said no.
ErrorCode decode_code(std::int32_t code) {
  const bool known = code >= 0 && code <= static_cast<std::int32_t>(ErrorCode::kSystem);
  return known ? static_cast<ErrorCode>(code) : ErrorCode::kRejected;
}

}  // namespace

v1::FromNode encode(const NodeMessage& said) {
  v1::FromNode message;
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
      [&](const Beat&) { message.mutable_beat(); }};
  std::visit(fill, said);
  return message;
}

v1::ToNode encode(const HostMessage& said) {
  v1::ToNode message;
  const auto fill = Overloaded{
      [&](const RoundPublished& published) {
        *message.mutable_published()->mutable_round() = encode_round(published.round);
        message.mutable_published()->set_seat(published.seat);
      },
      [&](const RoundBroken& broken) {
        message.mutable_broken()->set_round(broken.round);
        message.mutable_broken()->set_is_resize(broken.is_resize);
        *message.mutable_broken()->mutable_cause() = encode_failure(broken.cause);
      },
      [&](const JobEnded& ended) {
        message.mutable_ended()->set_succeeded(ended.succeeded);
        *message.mutable_ended()->mutable_cause() = encode_failure(ended.cause);
      },
      [&](const SessionLost& lost) {
        message.mutable_refused()->set_code(static_cast<std::int32_t>(lost.error.code()));
        message.mutable_refused()->set_message(cut(lost.error.message(), kMaxTextBytes));
      }};
  std::visit(fill, said);
  return message;
}

v1::ToNode encode_beat() {
  v1::ToNode message;
  message.mutable_beat();
  return message;
}

Result<NodeMessage> decode(const v1::FromNode& message) {
  switch (message.kind_case()) {
    case v1::FromNode::kJoin:
      return decode_spec(message.join());
    case v1::FromNode::kFailed: {
      auto failure = decode_failure(message.failed().failure());
      if (!failure) return failure.error();
      return NodeMessage(WorkerFailed{message.failed().round(), *std::move(failure)});
    }
    case v1::FromNode::kSucceeded:
      return NodeMessage(NodeSucceeded{message.succeeded().round()});
    case v1::FromNode::kLeave: {
      auto reason = decode_failure(message.leave().reason());
      if (!reason) return reason.error();
      return NodeMessage(Leave{*std::move(reason)});
    }
    case v1::FromNode::kBeat:
      return NodeMessage(Beat{});
    // A kind that only a newer version has is an unknown field to protobuf, which skips it.
    case v1::FromNode::KIND_NOT_SET:
      break;
  }
  return Error(ErrorCode::kProtocol, "a message of a kind that this version does not know");
}

Result<std::optional<HostMessage>> decode(const v1::ToNode& message) {
  switch (message.kind_case()) {
    case v1::ToNode::kPublished:
      return decode_published(message.published());
    case v1::ToNode::kBroken: {
      auto cause = decode_failure(message.broken().cause());
      if (!cause) return cause.error();
      return std::optional<HostMessage>(
          RoundBroken{message.broken().round(), *std::move(cause), message.broken().is_resize()});
    }
    case v1::ToNode::kEnded: {
      auto cause = decode_failure(message.ended().cause());
      if (!cause) return cause.error();
      return std::optional<HostMessage>(JobEnded{message.ended().succeeded(), *std::move(cause)});
    }
    case v1::ToNode::kRefused:
      return std::optional<HostMessage>(
          SessionLost{{decode_code(message.refused().code()), message.refused().message()}});
    case v1::ToNode::kBeat:
      return std::optional<HostMessage>();
    case v1::ToNode::KIND_NOT_SET:
      break;
  }
  return Error(ErrorCode::kProtocol, "a message of a kind that this version does not know");
}

}  // namespace ddprun::rendezvous
