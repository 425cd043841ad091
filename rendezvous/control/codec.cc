#include "rendezvous/control/codec.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "rendezvous/grpc/codec.h"
#include "rendezvous/grpc/step_codec.h"

namespace ddprun::rendezvous {
namespace {

namespace v2 = control::v2;

constexpr std::chrono::milliseconds kLongestDeadline = std::chrono::hours(24 * 365);

// A newer peer may know more of them.
template <typename Enum>
Enum decode_enum(int number, Enum last, Enum otherwise) {
  return number >= 0 && number <= static_cast<int>(last) ? static_cast<Enum>(number) : otherwise;
}

void fill(v2::Question& message, const ShowJobs& verb) {
  message.mutable_show()->set_after(verb.after);
}
void fill(v2::Question& message, const DrainNode& verb) {
  message.mutable_drain()->set_node(verb.node);
  message.mutable_drain()->set_deadline_ms(verb.deadline.count());
}
void fill(v2::Question& message, const ForgiveNode& verb) {
  message.mutable_forgive()->set_node(verb.node);
}
void fill(v2::Question& message, const ResizeJob& verb) {
  message.mutable_resize()->set_min_nodes(verb.min_nodes);
  message.mutable_resize()->set_max_nodes(verb.max_nodes);
}
void fill(v2::Question& message, const StopJob& verb) { message.mutable_stop()->set_by(verb.by); }
void fill(v2::Question& message, const AwaitEnd& /*verb*/) { message.mutable_await_end(); }
void fill(v2::Question& message, const SaveCheckpoint& /*verb*/) { message.set_checkpoint(true); }
void fill(v2::Question& message, const ShowStacks& verb) {
  message.mutable_stacks()->mutable_ranks()->Assign(verb.ranks.begin(), verb.ranks.end());
}

void fill(v2::Node& message, const NodeSnapshot& node) {
  message.set_id(node.id);
  message.set_hostname(node.hostname);
  message.set_role(node.role);
  message.set_node_rank(node.node_rank);
  message.set_workers(node.workers);
  message.set_state(static_cast<int>(node.state));
  message.set_hosts(node.hosts);
  message.set_strikes(node.strikes);
  message.set_sits_out_s(node.sits_out_s);
}

void fill(v2::Incident& message, const IncidentStatus& incident) {
  message.set_unix_ms(incident.unix_ms);
  message.set_round(incident.round);
  message.set_kind(static_cast<int>(incident.kind));
  message.set_hostname(incident.hostname);
  message.set_rank(incident.rank);
  message.set_text(incident.text);
  message.set_reformed_after_ms(incident.reformed_after_ms);
}

void fill(v2::Period& message, const Period& period) {
  message.set_kind(static_cast<int>(period.kind));
  message.set_begin_ms(period.begin_ms);
  message.set_end_ms(period.end_ms);
  message.set_round(period.round);
  message.set_workers(period.workers);
  message.set_text(period.text);
  message.mutable_ranks()->Assign(period.ranks.begin(), period.ranks.end());
}

Period decode_period(const v2::Period& message) {
  return {.kind = decode_enum(message.kind(), PeriodKind::kStandstill, PeriodKind::kRound),
          .begin_ms = message.begin_ms(),
          .end_ms = message.end_ms(),
          .round = message.round(),
          .workers = message.workers(),
          .text = message.text(),
          .ranks = {message.ranks().begin(), message.ranks().end()}};
}

void fill(v2::RankProgress& message, const RankProgress& rank) {
  message.set_rank(rank.rank);
  message.set_steps(rank.steps);
  message.set_quiet_ms(rank.quiet_ms);
  message.set_memory_bytes(rank.memory_bytes);
  encode_spread(rank.spread, *message.mutable_spread_us());
}

void fill(v2::Job& message, const JobSnapshot& job) {
  message.set_job(job.job);
  message.set_phase(static_cast<int>(job.phase));
  message.set_round(job.round);
  message.set_restarts(job.restarts);
  message.set_max_restarts(job.max_restarts);
  message.set_min_nodes(job.min_nodes);
  message.set_max_nodes(job.max_nodes);
  message.set_waits_for(job.waits_for);
  message.set_end(job.end);
  for (const NodeSnapshot& node : job.nodes) fill(*message.add_nodes(), node);
  for (const IncidentStatus& incident : job.incidents) fill(*message.add_incidents(), incident);
  for (const Period& period : job.periods) fill(*message.add_periods(), period);
  for (const RankProgress& rank : job.ranks) fill(*message.add_ranks(), rank);
  message.set_pid(job.pid);
  message.set_log_folder(job.log_folder);
}

void fill(v2::RankStack& message, const RankStack& stack) {
  message.set_rank(stack.rank);
  message.set_pid(stack.pid);
  for (const StackFrame& frame : stack.frames) {
    v2::StackFrame& one = *message.add_frames();
    one.set_function(frame.function);
    one.set_file(frame.file);
    one.set_line(frame.line);
  }
  message.set_why(stack.why);
  message.set_waits_in(stack.waits_in);
  message.set_kernel(stack.kernel);
  message.set_steps(stack.steps);
}

RankStack decode_stack(const v2::RankStack& message) {
  RankStack stack{.rank = message.rank(),
                  .pid = message.pid(),
                  .why = message.why(),
                  .waits_in = message.waits_in(),
                  .kernel = message.kernel(),
                  .steps = message.steps()};
  for (const v2::StackFrame& frame : message.frames())
    stack.frames.push_back({frame.function(), frame.file(), frame.line()});
  return stack;
}

JobSnapshot decode_job(const v2::Job& message) {
  JobSnapshot job{
      .job = message.job(),
      .phase = decode_enum(message.phase(), JobPhase::kStopped, JobPhase::kFailed),
      .round = message.round(),
      .restarts = message.restarts(),
      .max_restarts = message.max_restarts(),
      .min_nodes = message.min_nodes(),
      .max_nodes = message.max_nodes(),
      .waits_for = message.waits_for(),
      .end = message.end(),
  };
  for (const v2::Node& node : message.nodes())
    job.nodes.push_back(
        {.id = node.id(),
         .hostname = node.hostname(),
         .role = node.role(),
         .node_rank = node.node_rank(),
         .workers = node.workers(),
         .state = decode_enum(node.state(), MemberState::kDisbelieved, MemberState::kDismissed),
         .hosts = node.hosts(),
         .strikes = node.strikes(),
         .sits_out_s = node.sits_out_s()});
  for (const v2::Incident& incident : message.incidents())
    job.incidents.push_back(
        {.unix_ms = incident.unix_ms(),
         .round = incident.round(),
         .kind = decode_enum(incident.kind(), IncidentKind::kEnd, IncidentKind::kFailure),
         .hostname = incident.hostname(),
         .rank = incident.rank(),
         .text = incident.text(),
         .reformed_after_ms = incident.reformed_after_ms()});
  for (const v2::Period& period : message.periods()) job.periods.push_back(decode_period(period));
  for (const v2::RankProgress& rank : message.ranks())
    job.ranks.push_back({rank.rank(), rank.steps(), rank.quiet_ms(), rank.memory_bytes(),
                         decode_spread(rank.spread_us())});
  job.pid = message.pid();
  job.log_folder = message.log_folder();
  return job;
}

}  // namespace

std::string encode(const ControlQuestion& question) {
  v2::Question message;
  message.set_job(question.job);
  std::visit([&](const auto& verb) { fill(message, verb); }, question.verb);
  return message.SerializeAsString();
}

v2::Answer encode(const ControlAnswer& answer) {
  v2::Answer message;
  message.set_outcome(static_cast<int>(answer.outcome));
  message.set_text(answer.text);
  for (const JobSnapshot& job : answer.jobs) fill(*message.add_jobs(), job);
  message.set_has_more(answer.has_more);
  for (const RankStack& stack : answer.stacks) fill(*message.add_stacks(), stack);
  return message;
}

std::size_t encoded_bytes(const JobSnapshot& job) {
  v2::Job message;
  fill(message, job);
  return message.ByteSizeLong();
}

v2::Answer encode_challenge(const Challenge& challenge) {
  v2::Answer message;
  message.mutable_challenge()->set_nonce(challenge.nonce);
  return message;
}

Result<ControlQuestion> decode_question(const std::string& bytes) {
  v2::Question message;
  if (!message.ParseFromString(bytes)) return Error(ErrorCode::kProtocol, "no question");
  for (const std::string* text : {&message.job(), &message.show().after(), &message.drain().node(),
                                  &message.stop().by(), &message.forgive().node()}) {
    if (text->size() > kMaxNameBytes)
      return Error(ErrorCode::kLimit,
                   fmt::format("a name has {} bytes, more than {}", text->size(), kMaxNameBytes));
  }
  ControlQuestion question{.job = message.job(), .verb = {}};
  switch (message.kind_case()) {
    case v2::Question::kShow:
      question.verb = ShowJobs{message.show().after()};
      return question;
    case v2::Question::kDrain: {
      const std::chrono::milliseconds deadline(message.drain().deadline_ms());
      question.verb = DrainNode{
          .node = message.drain().node(),
          .deadline = std::clamp(deadline, std::chrono::milliseconds(0), kLongestDeadline)};
      return question;
    }
    case v2::Question::kForgive:
      question.verb = ForgiveNode{message.forgive().node()};
      return question;
    case v2::Question::kResize:
      question.verb = ResizeJob{message.resize().min_nodes(), message.resize().max_nodes()};
      return question;
    case v2::Question::kStop:
      question.verb = StopJob{message.stop().by()};
      return question;
    case v2::Question::kAwaitEnd:
      question.verb = AwaitEnd{};
      return question;
    case v2::Question::kStacks:
      question.verb =
          ShowStacks{{message.stacks().ranks().begin(), message.stacks().ranks().end()}};
      return question;
    case v2::Question::kCheckpoint:
      question.verb = SaveCheckpoint{};
      return question;
    case v2::Question::KIND_NOT_SET:
      break;
  }
  return Error(ErrorCode::kProtocol, "a question of a kind that this version does not know");
}

Result<ControlAnswer> decode(const v2::Answer& message) {
  ControlAnswer answer{.outcome = decode_enum(message.outcome(), ControlOutcome::kHasNoToken,
                                              ControlOutcome::kRefused),
                       .text = message.text(),
                       .has_more = message.has_more()};
  for (const v2::Job& job : message.jobs()) answer.jobs.push_back(decode_job(job));
  for (const v2::RankStack& stack : message.stacks()) answer.stacks.push_back(decode_stack(stack));
  return answer;
}

}  // namespace ddprun::rendezvous
