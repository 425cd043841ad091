// The rendezvous's messages, both ways. Any bytes: they are refused, or understood and then written
// and read again without a change. Values that make sense. The peer reads what was meant, and no
// message is longer than a peer takes.

#include <algorithm>
#include <string>
#include <variant>
#include <vector>

#include "base/assert.h"
#include "rendezvous/grpc/codec.h"
#include "tests/fuzz/script_input.h"

namespace ddprun::rendezvous {
namespace {

using fuzz::ScriptInput;
using std::chrono::milliseconds;

template <typename Message>
std::string checked_bytes(const Message& message, int most) {
  const std::string bytes = message.SerializeAsString();
  DDPRUN_ASSERT(std::ssize(bytes) <= most);
  return bytes;
}

v4::FromNode travelled(const v4::FromNode& message) {
  v4::FromNode read;
  DDPRUN_ASSERT(read.ParseFromString(checked_bytes(message, kMaxUpBytes)));
  return read;
}
v4::ToNode travelled(const v4::ToNode& message) {
  v4::ToNode read;
  DDPRUN_ASSERT(read.ParseFromString(checked_bytes(message, kMaxDownBytes)));
  return read;
}

v4::ToNode encode_down(const DownMessage& message) {
  if (const auto* challenge = std::get_if<Challenge>(&message)) return encode(*challenge);
  if (const auto* admitted = std::get_if<HostProof>(&message)) return encode(*admitted);
  const auto* lease = std::get_if<LeaseGrant>(&message);
  return lease != nullptr ? encode(*lease) : encode(std::get<HostMessage>(message));
}

// Whether a host that keeps it keeps no more than it may.
bool is_bounded(const RankEvidence& evidence) {
  const auto is_text = [](const std::string& text) { return text.size() <= kMostEvidenceText; };
  const auto is_group = [&](const GroupPosition& group) {
    return is_text(group.name) && is_text(group.operation) && is_text(group.shapes) &&
           group.ranks.size() <= kMostGroupRanks && group.enqueued >= 0 && group.completed >= 0 &&
           group.number >= 0;
  };
  return is_text(evidence.hostname) && is_text(evidence.detail) && is_text(evidence.place) &&
         evidence.activity >= Activity::kUnknown && evidence.activity <= Activity::kEnded &&
         evidence.steps >= 0 && evidence.groups.size() <= kMostGroups &&
         std::ranges::all_of(evidence.groups, is_group) &&
         encode_evidence({.ranks = {evidence}}).ranks(0).ByteSizeLong() <= kMaxEvidenceBytes;
}

bool is_short(const Failure& failure) {
  return failure.hostname.size() <= kMaxNameBytes && failure.message.size() <= kMaxTextBytes &&
         failure.words.size() <= kMaxNameBytes && failure.step.value_or(0) >= 0;
}

bool is_bounded_report(const ReplicaReport& report) {
  std::size_t ranks = 0;
  for (const ReplicaSum& sum : report.sums) ranks += sum.ranks.size();
  const auto is_short = [](const ReplicaTensors& one) {
    return one.ranks.size() <= kMostReplicaRanks && one.cells.size() <= kMostReplicaCells &&
           one.names.size() <= kMostReplicaNames && one.tensors >= 0;
  };
  return report.sums.size() <= kMostReplicaSums && ranks <= kMostReplicaRanks &&
         report.tensors.size() <= kMostReplicaTensors &&
         std::ranges::all_of(report.tensors, is_short) &&
         encode_replicas(report).ByteSizeLong() <= kMaxUpBytes;
}

// Checks the values that a peer's message may hold once it was let in.
void check_bounds(const NodeMessage& message) {
  if (const auto* spec = std::get_if<NodeSpec>(&message)) {
    DDPRUN_ASSERT(!spec->node_id.empty() && spec->node_id.size() <= kMaxNameBytes);
    DDPRUN_ASSERT(spec->role.size() <= kMaxNameBytes && spec->hostname.size() <= kMaxNameBytes);
    DDPRUN_ASSERT(spec->store_address.size() <= kMaxNameBytes);
    DDPRUN_ASSERT(spec->restart_window.count() >= 0 && spec->backoff.count() >= 0);
    // A clock's nanoseconds must not overflow.
    DDPRUN_ASSERT(spec->backoff_max.count() >= 0 && spec->backoff_max <= std::chrono::hours(9000));
  }
  if (const auto* failed = std::get_if<WorkerFailed>(&message))
    DDPRUN_ASSERT(is_short(failed->failure));
  if (const auto* leave = std::get_if<Leave>(&message)) DDPRUN_ASSERT(is_short(leave->reason));
  if (const auto* evidence = std::get_if<Evidence>(&message))
    DDPRUN_ASSERT(std::ranges::all_of(evidence->ranks, is_bounded));
  if (const auto* report = std::get_if<ReplicaReport>(&message))
    DDPRUN_ASSERT(is_bounded_report(*report));
  if (const auto* report = std::get_if<StepReport>(&message))
    DDPRUN_ASSERT(encode_steps(*report).ByteSizeLong() <= kMaxUpBytes);
  if (const auto* resumed = std::get_if<ResumeRequest>(&message)) {
    DDPRUN_ASSERT(is_short(resumed->cause) && resumed->round >= 0);
    DDPRUN_ASSERT(resumed->spec.node_id.size() <= kMaxNameBytes);
  }
}

void check_bounds(const DownMessage& message) {
  if (const auto* grant = std::get_if<LeaseGrant>(&message)) {
    DDPRUN_ASSERT(grant->lease.length.count() > 0 && grant->lease.heartbeat_every.count() > 0);
    DDPRUN_ASSERT(grant->lease.length <= std::chrono::hours(9000));
    return;
  }
  if (const auto* challenge = std::get_if<Challenge>(&message)) {
    DDPRUN_ASSERT(challenge->nonce.size() <= kMaxNameBytes);
    return;
  }
  if (const auto* admitted = std::get_if<HostProof>(&message)) {
    DDPRUN_ASSERT(admitted->bytes.size() <= kProofBytes);
    return;
  }
  const auto& said = std::get<HostMessage>(message);
  if (const auto* published = std::get_if<RoundPublished>(&said)) {
    DDPRUN_ASSERT(published->seat.node_rank >= 0);
    DDPRUN_ASSERT(published->seat.node_rank < published->round.node_count);
  }
  if (const auto* broken = std::get_if<RoundBroken>(&said)) DDPRUN_ASSERT(is_short(broken->cause));
  if (const auto* ended = std::get_if<JobEnded>(&said)) {
    DDPRUN_ASSERT(is_short(ended->cause));
    DDPRUN_ASSERT(!ended->no_progress || ended->no_progress->last.size() <= kMostShownAttempts);
  }
  if (const auto* told = std::get_if<StandstillVerdict>(&said)) {
    DDPRUN_ASSERT(told->verdict.kind <= VerdictKind::kAllWait);
    DDPRUN_ASSERT(told->verdict.ranks.size() <= kMostVerdictRanks);
    DDPRUN_ASSERT(told->verdict.sentence.size() <= kMaxTextBytes);
  }
}

void read_from_node(std::string_view bytes) {
  v4::FromNode message;
  if (!message.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) return;
  const auto first = decode(message);
  if (!first) return;
  check_bounds(*first);
  if (std::ssize(bytes) > kMaxUpBytes) return;  // gRPC does not let it through
  const auto second = decode(travelled(encode(*first)));
  DDPRUN_ASSERT(second.has_value());
  DDPRUN_ASSERT(encode(*first).SerializeAsString() == encode(*second).SerializeAsString());
}

void read_to_node(std::string_view bytes) {
  v4::ToNode message;
  if (!message.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) return;
  const auto first = decode(message);
  if (!first) return;
  check_bounds(*first);
  if (std::ssize(bytes) > kMaxDownBytes) return;
  const v4::ToNode again = encode_down(*first);
  const auto second = decode(travelled(again));
  DDPRUN_ASSERT(second.has_value());
  DDPRUN_ASSERT(again.SerializeAsString() == encode_down(*second).SerializeAsString());
}

// Letters only: protobuf's `string` must be UTF-8.
std::string address(ScriptInput& script) {
  std::string text = script.text();
  for (char& letter : text)
    letter = static_cast<char>('a' + (static_cast<unsigned char>(letter) % 26));
  return text;
}

std::uint16_t port(ScriptInput& script) { return static_cast<std::uint16_t>(script.number()); }
int number(ScriptInput& script) { return static_cast<int>(script.number()); }
milliseconds wait(ScriptInput& script) {
  return milliseconds(static_cast<std::uint32_t>(script.number()));
}

std::string long_text(ScriptInput& script) {
  std::string text = script.text();
  if (!script.flag()) return text;
  while (!text.empty() && text.size() < kMaxTextBytes + 2) text += text;
  return text;
}

Failure failure(ScriptInput& script) {
  return {.hostname = long_text(script),
          .rank = number(script),
          .local_rank = number(script),
          .exit_code = number(script),
          .message = long_text(script),
          .words = long_text(script),
          .step = script.flag()
                      ? std::optional<std::int64_t>(static_cast<std::uint32_t>(script.number()))
                      : std::nullopt,
          .is_step_of_run = script.flag(),
          .is_hang = script.flag(),
          .ends_job = script.flag()};
}

NodeSpec spec(ScriptInput& script) {
  NodeSpec spec;
  spec.node_id = "n" + address(script).substr(0, kMaxNameBytes - 1);
  spec.hostname = script.text();
  spec.local_world_size = number(script);
  spec.role = script.text();
  spec.node_rank = number(script);
  spec.rank_is_preferred = script.flag();
  spec.store_address = address(script);
  spec.store_port = port(script);
  spec.worker_store_port = port(script);
  spec.max_restarts = number(script);
  spec.restart_window = wait(script);
  spec.backoff = wait(script);
  spec.backoff_max = wait(script);
  spec.min_nodes = number(script);
  spec.max_nodes = number(script);
  spec.answers_looks = script.flag();
  spec.compares_replicas = script.flag();
  spec.hears_stragglers = script.flag();
  spec.most_without_progress = std::max(number(script), 0);
  spec.takes_step_orders = script.flag();
  spec.strike_rules = {.most = static_cast<int>(script.choice(kMostThreshold + 1)),
                       .half_life = wait(script)};
  spec.strikes = script.text();
  return spec;
}

std::int64_t count(ScriptInput& script) { return static_cast<std::uint32_t>(script.number()); }

RankEvidence rank_evidence(ScriptInput& script) {
  RankEvidence evidence{.rank = number(script),
                        .hostname = long_text(script),
                        .activity = static_cast<Activity>(script.choice(9)),
                        .detail = long_text(script),
                        .place = long_text(script),
                        .steps = count(script)};
  for (std::size_t groups = script.choice(6); groups > 0; --groups) {
    GroupPosition group{.name = long_text(script),
                        .enqueued = count(script),
                        .completed = count(script),
                        .number = count(script),
                        .operation = long_text(script),
                        .shapes = long_text(script)};
    group.ranks.assign(script.byte(), number(script));
    evidence.groups.push_back(std::move(group));
  }
  return evidence;
}

// Texts are cut, and groups may be left out.
bool is_same(const RankEvidence& meant, const RankEvidence& read) {
  return meant.rank == read.rank && meant.activity == read.activity && meant.steps == read.steps &&
         meant.hostname.starts_with(read.hostname) && meant.place.starts_with(read.place) &&
         read.groups.size() <= meant.groups.size();
}

// Cut, never refused: a report must come through, whatever the worker printed.
bool is_same(const Failure& meant, const Failure& read) {
  return meant.rank == read.rank && meant.local_rank == read.local_rank &&
         meant.exit_code == read.exit_code && meant.hostname.starts_with(read.hostname) &&
         meant.message.starts_with(read.message) &&
         (meant.hostname.size() > kMaxNameBytes || meant.hostname == read.hostname) &&
         (meant.message.size() > kMaxTextBytes || meant.message == read.message);
}

template <typename Kind>
Kind read_up(const NodeMessage& said) {
  const auto read = decode(travelled(encode(said)));
  DDPRUN_ASSERT(read.has_value() && std::holds_alternative<Kind>(*read));
  return std::get<Kind>(*read);
}
template <typename Kind>
Kind read_down(const HostMessage& said) {
  const auto read = decode(travelled(encode(said)));
  DDPRUN_ASSERT(read.has_value() && std::holds_alternative<HostMessage>(*read));
  DDPRUN_ASSERT(std::holds_alternative<Kind>(std::get<HostMessage>(*read)));
  return std::get<Kind>(std::get<HostMessage>(*read));
}

// All ranks arrive, in messages that the host takes.
void write_evidence(ScriptInput& script) {
  Evidence evidence{.round = script.number(), .inquiry = script.number(), .ranks = {}};
  for (unsigned ranks = script.byte(); ranks > 0; --ranks)
    evidence.ranks.push_back(ranks % 8 == 0 || evidence.ranks.empty() ? rank_evidence(script)
                                                                      : evidence.ranks.back());
  const std::vector<Evidence> messages = split(evidence);
  DDPRUN_ASSERT(messages.size() <= kMaxEvidenceMessages);
  auto next = evidence.ranks.begin();
  for (const Evidence& message : messages) {
    const auto read = read_up<Evidence>(message);
    DDPRUN_ASSERT(read.round == evidence.round && read.inquiry == evidence.inquiry);
    for (const RankEvidence& one : read.ranks) {
      DDPRUN_ASSERT(next != evidence.ranks.end() && is_same(*next, one) && is_bounded(one));
      ++next;
    }
  }
  DDPRUN_ASSERT(next == evidence.ranks.end());
}

void write_verdict(ScriptInput& script) {
  StandstillVerdict said{.round = script.number(),
                         .inquiry = script.number(),
                         .verdict = {.kind = static_cast<VerdictKind>(script.choice(9)),
                                     .is_certain = script.flag(),
                                     .sentence = long_text(script)}};
  said.verdict.ranks.assign(script.byte() * 8U, number(script));
  const auto told = read_down<StandstillVerdict>(said);
  DDPRUN_ASSERT(told.round == said.round && told.inquiry == said.inquiry);
  DDPRUN_ASSERT(told.verdict.kind == said.verdict.kind);
  DDPRUN_ASSERT(said.verdict.sentence.starts_with(told.verdict.sentence));
  const Look look{said.round, said.inquiry};
  DDPRUN_ASSERT(read_down<Look>(look).inquiry == look.inquiry);
}

void write_from_node(ScriptInput script) {
  const NodeSpec joined = spec(script);
  DDPRUN_ASSERT(read_up<NodeSpec>(joined) == joined);
  const WorkerFailed failed{script.number(), failure(script)};
  const auto read = read_up<WorkerFailed>(failed);
  DDPRUN_ASSERT(read.round == failed.round && is_same(failed.failure, read.failure));
  DDPRUN_ASSERT(is_same(failed.failure, read_up<Leave>(Leave{failed.failure}).reason));
  const Suspicion suspicion{script.number()};
  DDPRUN_ASSERT(read_up<Suspicion>(suspicion).round == suspicion.round);
  write_evidence(script);
  const NodeSucceeded succeeded{script.number()};
  DDPRUN_ASSERT(read_up<NodeSucceeded>(succeeded).round == succeeded.round);
  const Heartbeat heartbeat{milliseconds(script.number())};
  DDPRUN_ASSERT(read_up<Heartbeat>(heartbeat).stamp == heartbeat.stamp);
}

void write_to_node(ScriptInput script) {
  RoundPublished published;
  published.round = {.number = script.number(),
                     .restart_count = number(script),
                     .world_size = number(script),
                     .node_count = 1 + static_cast<int>(script.byte()),
                     .master_addr = address(script),
                     .master_port = port(script)};
  published.seat = {.node_rank = static_cast<int>(script.byte()) % published.round.node_count,
                    .first_rank = number(script),
                    .role_first_rank = number(script),
                    .role_world_size = number(script)};
  const auto round = read_down<RoundPublished>(published);
  DDPRUN_ASSERT(round.round == published.round && round.seat == published.seat);
  const RoundBroken broken{script.number(), failure(script), script.flag()};
  const auto read = read_down<RoundBroken>(broken);
  DDPRUN_ASSERT(read.round == broken.round && read.is_resize == broken.is_resize);
  DDPRUN_ASSERT(is_same(broken.cause, read.cause));
  const JobEnded ended{script.flag(), broken.cause};
  DDPRUN_ASSERT(read_down<JobEnded>(ended).succeeded == ended.succeeded);
  write_verdict(script);
  const auto code = static_cast<ErrorCode>(script.choice(9));
  DDPRUN_ASSERT(read_down<SessionLost>(SessionLost{{code, long_text(script)}}).error.code() ==
                code);
  LeaseGrant grant{.stamp = wait(script),
                   .lease = {.length = milliseconds(1 + script.byte()),
                             .heartbeat_every = milliseconds(1 + script.byte())}};
  if (script.flag())
    grant.wait_status = {.awaits = static_cast<Await>(script.choice(6)),
                         .have = number(script),
                         .min_nodes = number(script),
                         .max_nodes = number(script),
                         .ends_in = wait(script),
                         .missing = script.text()};
  const auto granted = decode(travelled(encode(grant)));
  DDPRUN_ASSERT(granted.has_value() && std::holds_alternative<LeaseGrant>(*granted));
  const auto& lease = std::get<LeaseGrant>(*granted);
  DDPRUN_ASSERT(lease.stamp == grant.stamp && lease.lease.length == grant.lease.length);
  DDPRUN_ASSERT(lease.lease.heartbeat_every == grant.lease.heartbeat_every);
  DDPRUN_ASSERT(lease.wait_status == grant.wait_status);
}

}  // namespace
}  // namespace ddprun::rendezvous

// The first byte says which way.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace ddprun::rendezvous;
  ddprun::fuzz::ScriptInput script(data, size);
  switch (script.choice(4)) {
    case 0:
      read_from_node(script.all());
      break;
    case 1:
      read_to_node(script.all());
      break;
    case 2:
      write_from_node(script);
      break;
    case 3:
      write_to_node(script);
      break;
  }
  return 0;
}
