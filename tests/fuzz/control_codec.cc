// The messages between operators and a rendezvous (ddpctl), both ways. Any bytes: they are refused,
// or understood within their bounds and then written and read again without a change. The output of
// ddpctl for any answer is text for a terminal, or JSON.

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <variant>

#include "base/assert.h"
#include "daemon/ctl_output.h"
#include "rendezvous/control/codec.h"
#include "rendezvous/grpc/codec.h"
#include "tests/fuzz/script_input.h"

namespace ddprun::rendezvous {
namespace {

namespace v2 = control::v2;
using daemon::CtlCommand;
using fuzz::ScriptInput;
using std::chrono::milliseconds;

constexpr milliseconds kMostDeadline = std::chrono::hours(24 * 366);

template <typename Message>
Message travelled(const Message& message) {
  Message read;
  DDPRUN_ASSERT(read.ParseFromString(message.SerializeAsString()));
  return read;
}

template <typename Value>
std::string bytes_of(const Value& value) {
  return encode(value).SerializeAsString();
}

void check_bounds(const ControlQuestion& question) {
  DDPRUN_ASSERT(question.job.size() <= kMaxNameBytes);
  if (const auto* drain = std::get_if<DrainNode>(&question.verb)) {
    DDPRUN_ASSERT(drain->node.size() <= kMaxNameBytes);
    DDPRUN_ASSERT(drain->deadline.count() >= 0 && drain->deadline <= kMostDeadline);
  }
  if (const auto* forgive = std::get_if<ForgiveNode>(&question.verb))
    DDPRUN_ASSERT(forgive->node.size() <= kMaxNameBytes);
  if (const auto* stop = std::get_if<StopJob>(&question.verb))
    DDPRUN_ASSERT(stop->by.size() <= kMaxNameBytes);
}

void read_question(std::string_view bytes) {
  const auto first = decode_question(std::string(bytes));
  if (!first) return;
  check_bounds(*first);
  const auto second = decode_question(encode(*first));
  DDPRUN_ASSERT(second.has_value() && encode(*first) == encode(*second));
}

// Checks values that have a name only: name_of() asserts nothing of a number that it does not know.
void check_names(const JobSnapshot& job) {
  DDPRUN_ASSERT(!name_of(job.phase).empty());
  for (const NodeSnapshot& node : job.nodes) DDPRUN_ASSERT(!name_of(node.state).empty());
  for (const IncidentStatus& incident : job.incidents)
    DDPRUN_ASSERT(!name_of(incident.kind).empty());
}

bool is_for_a_terminal(const std::string& text) {
  return std::ranges::all_of(text, [](char byte) {
    return byte == '\n' || (static_cast<unsigned char>(byte) >= ' ' && byte != 0x7F);
  });
}

// Every command prints every answer, whatever it asked.
void print(const ControlAnswer& answer) {
  const ControlQuestion shows{.job = "j", .verb = ShowJobs{}};
  const ControlQuestion drains{.job = "j", .verb = DrainNode{}};
  for (const CtlCommand command : {CtlCommand::kJobs, CtlCommand::kStatus, CtlCommand::kNodes,
                                   CtlCommand::kDrain, CtlCommand::kWait, CtlCommand::kStacks}) {
    const bool is_show = command != CtlCommand::kDrain && command != CtlCommand::kWait &&
                         command != CtlCommand::kStacks;
    daemon::CtlOptions options{
        .command = command, .endpoints = {{"h", 1}}, .question = is_show ? shows : drains};
    const std::string text = daemon::output(options, answer);
    DDPRUN_ASSERT(is_for_a_terminal(text) && (text.empty() || text.back() == '\n'));
    DDPRUN_ASSERT(is_for_a_terminal(daemon::error_text(options, answer)));
    options.json = true;
    const auto json = nlohmann::json::parse(daemon::output(options, answer), nullptr, false);
    DDPRUN_ASSERT(json.is_object() && json.contains("outcome"));
  }
  const auto code = daemon::exit_code(answer);
  DDPRUN_ASSERT((code == daemon::kCtlDone) == (answer.outcome == ControlOutcome::kDone));
}

void read_answer(std::string_view bytes) {
  v2::Answer message;
  if (!message.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) return;
  const auto first = decode(message);
  if (!first) return;
  DDPRUN_ASSERT(first->outcome >= ControlOutcome::kDone &&
                first->outcome <= ControlOutcome::kHasNoToken);
  for (const JobSnapshot& job : first->jobs) check_names(job);
  const auto second = decode(travelled(encode(*first)));
  DDPRUN_ASSERT(second.has_value() && bytes_of(*first) == bytes_of(*second));
  DDPRUN_ASSERT(first->jobs == second->jobs && first->stacks == second->stacks);
  print(*first);
}

int number(ScriptInput& script) { return static_cast<int>(script.number()); }

void write_question(ScriptInput script) {
  const ControlQuestion drain{.job = script.text(),
                              .verb = DrainNode{script.text(), milliseconds(script.byte())}};
  const auto drained = decode_question(encode(drain));
  DDPRUN_ASSERT(drained.has_value() && encode(*drained) == encode(drain));
  DDPRUN_ASSERT(std::get<DrainNode>(drained->verb).node == std::get<DrainNode>(drain.verb).node);
  const ControlQuestion resize{.job = drain.job, .verb = ResizeJob{number(script), number(script)}};
  const auto resized = decode_question(encode(resize));
  DDPRUN_ASSERT(resized.has_value() && encode(*resized) == encode(resize));
  DDPRUN_ASSERT(std::get<ResizeJob>(resized->verb).max_nodes ==
                std::get<ResizeJob>(resize.verb).max_nodes);
}

JobSnapshot job(ScriptInput& script) {
  JobSnapshot job{.job = script.text(),
                  .phase = static_cast<JobPhase>(script.choice(5)),
                  .round = script.number(),
                  .restarts = number(script),
                  .max_restarts = number(script),
                  .min_nodes = number(script),
                  .max_nodes = number(script),
                  .waits_for = script.text(),
                  .end = script.text()};
  for (std::size_t count = script.choice(4); count > 0; --count)
    job.nodes.push_back({.id = script.text(),
                         .hostname = script.text(),
                         .role = script.text(),
                         .node_rank = script.small_number(),
                         .workers = number(script),
                         .state = static_cast<MemberState>(script.choice(3)),
                         .hosts = script.flag()});
  for (std::size_t count = script.choice(4); count > 0; --count)
    job.incidents.push_back({.unix_ms = script.number(),
                             .round = script.number(),
                             .kind = static_cast<IncidentKind>(script.choice(3)),
                             .hostname = script.text(),
                             .rank = script.small_number(),
                             .text = script.text(),
                             .reformed_after_ms = script.number()});
  return job;
}

void write_answer(ScriptInput script) {
  ControlAnswer answer{.outcome = static_cast<ControlOutcome>(script.choice(7)),
                       .text = script.text()};
  for (std::size_t count = script.choice(3); count > 0; --count) answer.jobs.push_back(job(script));
  const auto read = decode(travelled(encode(answer)));
  DDPRUN_ASSERT(read.has_value() && read->outcome == answer.outcome);
  DDPRUN_ASSERT(read->text == answer.text && read->jobs == answer.jobs);
  print(answer);
}

}  // namespace
}  // namespace ddprun::rendezvous

// The first byte says which way.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace ddprun::rendezvous;
  ddprun::fuzz::ScriptInput script(data, size);
  switch (script.choice(4)) {
    case 0:
      read_question(script.all());
      break;
    case 1:
      read_answer(script.all());
      break;
    case 2:
      write_question(script);
      break;
    case 3:
      write_answer(script);
      break;
  }
  return 0;
}
