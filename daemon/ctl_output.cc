#include "daemon/ctl_output.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <vector>

#include "base/shown_text.h"
#include "base/text_table.h"
#include "daemon/ctl_stacks.h"

namespace ddprun::daemon {

using rendezvous::ControlAnswer;
using rendezvous::ControlOutcome;
using rendezvous::IncidentStatus;
using rendezvous::JobSnapshot;
using rendezvous::NodeSnapshot;
using rendezvous::RankProgress;
using rendezvous::StepSpread;
using Json = nlohmann::ordered_json;

namespace {

std::string time_of(std::int64_t unix_ms) {
  return fmt::format("{:%Y-%m-%dT%H:%M:%S}.{:03}Z", fmt::gmtime(unix_ms / 1000), unix_ms % 1000);
}

// ---- JSON ----

Json node_json(const NodeSnapshot& node) {
  Json json = {{"id", node.id},
               {"hostname", node.hostname},
               {"role", node.role},
               {"node_rank", nullptr},
               {"workers", node.workers},
               {"state", rendezvous::name_of(node.state)},
               {"hosts_rendezvous", node.hosts},
               {"strikes", node.strikes},
               {"sits_out_s", node.sits_out_s}};
  if (node.node_rank >= 0) json["node_rank"] = node.node_rank;
  return json;
}

Json incident_json(const IncidentStatus& incident) {
  Json json = {{"time", time_of(incident.unix_ms)},
               {"kind", rendezvous::name_of(incident.kind)},
               {"round", incident.round},
               {"hostname", incident.hostname},
               {"rank", nullptr},
               {"text", incident.text},
               {"reformed_after_s", nullptr}};
  if (incident.rank >= 0) json["rank"] = incident.rank;
  if (incident.reformed_after_ms >= 0)
    json["reformed_after_s"] = static_cast<double>(incident.reformed_after_ms) / 1000;
  return json;
}

// A node that was asked at its own socket tells of its ranks. Times are in milliseconds.
Json rank_json(const RankProgress& rank) {
  constexpr double kMilli = 1000;
  Json json = {{"rank", rank.rank}};
  if (rank.steps >= 0) json["steps"] = rank.steps;
  if (rank.memory_bytes >= 0) json["memory_bytes"] = rank.memory_bytes;
  const StepSpread& spread = rank.spread;
  if (spread.step_p99_us <= 0) return json;
  const auto add = [&json](const char* name, std::int64_t us) {
    json[name] = static_cast<double>(us) / kMilli;
  };
  add("step_p50_ms", spread.step_p50_us);
  add("step_p99_ms", spread.step_p99_us);
  add("own_p50_ms", spread.own_p50_us);
  add("own_p99_ms", spread.own_p99_us);
  return json;
}

Json job_json(const JobSnapshot& job) {
  Json json = {{"job", job.job},
               {"phase", rendezvous::name_of(job.phase)},
               {"round", job.round},
               {"restarts", job.restarts},
               {"max_restarts", job.max_restarts},
               {"min_nodes", job.min_nodes},
               {"max_nodes", job.max_nodes},
               {"waits_for", job.waits_for},
               {"end", job.end},
               {"nodes", Json::array()},
               {"incidents", Json::array()}};
  for (const NodeSnapshot& node : job.nodes) json["nodes"].push_back(node_json(node));
  for (const IncidentStatus& incident : job.incidents)
    json["incidents"].push_back(incident_json(incident));
  if (job.pid != 0) json["pid"] = job.pid;
  if (job.pid != 0) json["log_folder"] = job.log_folder;
  for (const RankProgress& rank : job.ranks) json["ranks"].push_back(rank_json(rank));
  return json;
}

Json stack_json(const rendezvous::RankStack& stack) {
  Json json = {{"rank", stack.rank},  {"pid", stack.pid},           {"frames", Json::array()},
               {"why", stack.why},    {"waits_in", stack.waits_in}, {"kernel", stack.kernel},
               {"steps", stack.steps}};
  for (const rendezvous::StackFrame& frame : stack.frames)
    json["frames"].push_back(
        {{"function", frame.function}, {"file", frame.file}, {"line", frame.line}});
  return json;
}

std::string_view name_of(ControlOutcome outcome) {
  switch (outcome) {
    case ControlOutcome::kDone:
      return "done";
    case ControlOutcome::kJobFailed:
      return "job_failed";
    case ControlOutcome::kRefused:
    case ControlOutcome::kTls:
    case ControlOutcome::kNoTls:
      return "refused";
    case ControlOutcome::kUnknown:
      return "unknown";
    case ControlOutcome::kWrongToken:
    case ControlOutcome::kHasNoToken:
      return "wrong_token";
    case ControlOutcome::kUnreachable:
    case ControlOutcome::kStillRunning:
      return "unreachable";
  }
  return "refused";
}

// Names that people chose may be no UTF-8. ASCII alone: a terminal obeys nothing in it.
std::string text_of(const Json& json) {
  return json.dump(2, ' ', true, Json::error_handler_t::replace) + '\n';
}

std::string as_json(const CtlOptions& options, const ControlAnswer& answer) {
  Json json = {{"schema", 2}, {"outcome", name_of(answer.outcome)}, {"text", answer.text}};
  const bool shows_stacks = options.command == CtlCommand::kStacks;
  const bool shows = std::holds_alternative<rendezvous::ShowJobs>(options.question.verb);
  if ((shows || shows_stacks) && answer.outcome == ControlOutcome::kDone) {
    json["jobs"] = Json::array();
    for (const JobSnapshot& job : answer.jobs) json["jobs"].push_back(job_json(job));
  }
  if (shows_stacks && answer.outcome == ControlOutcome::kDone) {
    json["stacks"] = Json::array();
    for (const auto& stack : answer.stacks) json["stacks"].push_back(stack_json(stack));
  }
  return text_of(json);
}

// ---- tables ----

std::string range(int min, int max) {
  return min == max ? fmt::format("{}", min) : fmt::format("{}:{}", min, max);
}

int in_round(const JobSnapshot& job) {
  return static_cast<int>(std::ranges::count_if(job.nodes, [](const NodeSnapshot& node) {
    return node.state == rendezvous::MemberState::kRunning ||
           node.state == rendezvous::MemberState::kSucceeded;
  }));
}

std::string jobs_table(const std::vector<JobSnapshot>& jobs) {
  std::vector<TextRow> rows = {{"JOB", "PHASE", "ROUND", "NODES", "WANTED", "RESTARTS", "WHY"}};
  for (const JobSnapshot& job : jobs)
    rows.push_back({shown_text(job.job), std::string(rendezvous::name_of(job.phase)),
                    fmt::format("{}", job.round), fmt::format("{}", in_round(job)),
                    range(job.min_nodes, job.max_nodes),
                    fmt::format("{}/{}", job.restarts, job.max_restarts),
                    shown_text(job.end.empty() ? job.waits_for : job.end)});
  return text_table(rows);
}

// Jobs of this host.
std::string own_jobs_table(const std::vector<JobSnapshot>& jobs) {
  std::vector<TextRow> rows = {{"PID", "JOB", "PHASE", "ROUND", "NODES", "RESTARTS", "LOGS"}};
  for (const JobSnapshot& job : jobs)
    rows.push_back({fmt::format("{}", job.pid), shown_text(job.job),
                    std::string(rendezvous::name_of(job.phase)), fmt::format("{}", job.round),
                    range(job.min_nodes, job.max_nodes),
                    fmt::format("{}/{}", job.restarts, job.max_restarts),
                    job.log_folder.empty() ? "-" : shown_text(job.log_folder)});
  return text_table(rows);
}

std::string strikes_text(const NodeSnapshot& node) {
  if (node.strikes == 0) return "-";
  std::string text = fmt::format("{:.3g}", node.strikes);
  if (node.sits_out_s > 0) text += fmt::format(", out for {} s", node.sits_out_s);
  return text;
}

std::string nodes_table(const JobSnapshot& job) {
  std::vector<TextRow> rows = {{"RANK", "HOSTNAME", "STATE", "WORKERS", "ROLE", "STRIKES", "ID"}};
  for (const NodeSnapshot& node : job.nodes)
    rows.push_back({node.node_rank < 0 ? "-" : fmt::format("{}", node.node_rank),
                    shown_text(node.hostname) + (node.hosts ? " (host)" : ""),
                    std::string(rendezvous::name_of(node.state)), fmt::format("{}", node.workers),
                    shown_text(node.role), strikes_text(node), shown_text(node.id)});
  return text_table(rows);
}

std::string status_text(const JobSnapshot& job) {
  std::string text =
      fmt::format("{}: {}, round {}, {} of {} nodes, {} of {} restarts spent\n",
                  shown_text(job.job), rendezvous::name_of(job.phase), job.round, in_round(job),
                  range(job.min_nodes, job.max_nodes), job.restarts, job.max_restarts);
  if (job.pid != 0)
    text += fmt::format("pid: {}\nlogs: {}\n", job.pid,
                        job.log_folder.empty() ? "-" : shown_text(job.log_folder));
  if (!job.waits_for.empty()) text += fmt::format("waits: {}\n", shown_text(job.waits_for));
  if (!job.end.empty()) text += fmt::format("end: {}\n", shown_text(job.end));
  if (!job.nodes.empty()) text += '\n' + nodes_table(job);
  if (job.incidents.empty()) return text;
  std::vector<TextRow> rows = {{"TIME", "ROUND", "KIND", "RE-FORMED", "WHAT"}};
  for (const IncidentStatus& incident : job.incidents)
    rows.push_back(
        {time_of(incident.unix_ms), fmt::format("{}", incident.round),
         std::string(rendezvous::name_of(incident.kind)),
         incident.reformed_after_ms < 0
             ? "-"
             : fmt::format("{:.3f} s", static_cast<double>(incident.reformed_after_ms) / 1000),
         shown_text(incident.text)});
  return text + '\n' + text_table(rows);
}

std::string as_text(const CtlOptions& options, const ControlAnswer& answer) {
  if (options.command == CtlCommand::kStacks) return stacks_text(answer.stacks);
  if (options.command == CtlCommand::kJobs)
    return options.endpoints.empty() ? own_jobs_table(answer.jobs) : jobs_table(answer.jobs);
  if (options.command == CtlCommand::kNodes) return nodes_table(answer.jobs.front());
  const bool is_top = options.command == CtlCommand::kTop;  // its screen is in ctl_top.h
  if (options.command != CtlCommand::kStatus && !is_top) return shown_text(answer.text) + '\n';
  std::string text;
  for (const JobSnapshot& job : answer.jobs) text += (text.empty() ? "" : "\n") + status_text(job);
  return text;
}

}  // namespace

std::string output(const CtlOptions& options, const ControlAnswer& answer) {
  if (options.json) return as_json(options, answer);
  const bool shows_job = options.command == CtlCommand::kNodes;
  if (answer.outcome != ControlOutcome::kDone || (shows_job && answer.jobs.empty())) return {};
  return as_text(options, answer);
}

std::string error_text(const CtlOptions& options, const ControlAnswer& answer) {
  if (answer.outcome == ControlOutcome::kDone) return {};
  std::string text = shown_text(answer.text);
  if (answer.outcome == ControlOutcome::kNoTls)
    text += ": leave out --tls-ca, --tls-cert and --tls-key";
  std::string where = options.endpoints.empty() ? "this host" : "";
  for (const CtlEndpoint& one : options.endpoints)
    where += fmt::format("{}{}:{}", where.empty() ? "" : ",", one.host, one.port);
  const CtlExit code = exit_code(answer);
  if (code == kCtlUnreachable || is_of_tls(answer.outcome) ||
      answer.outcome == ControlOutcome::kHasNoToken)
    return fmt::format("{}: {}", where, text);
  if (code == kCtlWrongToken)
    return fmt::format("{}: {}; the token comes from DDPRUN_TOKEN or --token-file", where, text);
  return text;
}

CtlExit exit_code(const ControlAnswer& answer) {
  switch (answer.outcome) {
    case ControlOutcome::kDone:
      return kCtlDone;
    case ControlOutcome::kJobFailed:
    case ControlOutcome::kRefused:
    case ControlOutcome::kTls:
    case ControlOutcome::kNoTls:
      return kCtlFailed;
    case ControlOutcome::kUnknown:
      return kCtlUnknown;
    case ControlOutcome::kWrongToken:
    case ControlOutcome::kHasNoToken:
      return kCtlWrongToken;
    case ControlOutcome::kUnreachable:
    case ControlOutcome::kStillRunning:
      return kCtlUnreachable;
  }
  return kCtlFailed;
}

}  // namespace ddprun::daemon
