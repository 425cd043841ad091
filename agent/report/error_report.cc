// The failure report as JSON (report.h).
#include <fmt/chrono.h>
#include <fmt/format.h>

#include <ctime>
#include <nlohmann/json.hpp>

#include "agent/report/incidents.h"
#include "agent/report/report.h"
#include "base/signal_name.h"

namespace ddprun::agent {
namespace {

using Json = nlohmann::json;

// The time in UTC with milliseconds, as RFC 3339 writes it: programs on other machines read it.
std::string utc(std::chrono::system_clock::time_point when) {
  const auto since = std::chrono::floor<std::chrono::milliseconds>(when.time_since_epoch());
  const std::time_t seconds = std::chrono::floor<std::chrono::seconds>(since).count();
  std::tm broken_down{};
  ::gmtime_r(&seconds, &broken_down);
  return fmt::format("{:%Y-%m-%dT%H:%M:%S}.{:03}Z", broken_down, since.count() % 1000);
}

// One worker of this node, without empty fields. `pid` is null if it never had a process.
Json worker_json(const ReportFacts& facts, const ReportedWorker& worker) {
  const WorkerExit& exit = worker.worker.exit;
  const std::chrono::duration<double> ran = worker.worker.ended - worker.worker.started;
  Json json = {{"hostname", facts.hostname},
               {"node_rank", facts.node_rank},
               {"rank", worker.rank},
               {"local_rank", exit.local_rank},
               {"role", facts.role},
               {"pid", exit.start_error.empty() ? Json(exit.pid) : Json()},
               {"exit_code", exit.exit_code},
               {"time", utc(worker.when)},
               {"run_time_s", ran.count()},
               {"reason", reason_of(worker)},
               {"stopped_by_ddprun", worker.worker.stopped_by_us}};
  if (exit.exit_code < 0) json["signal"] = signal_name(-exit.exit_code);
  if (!worker.error_file.empty()) json["error_file"] = worker.error_file;
  if (worker.record) {
    json["message"] = worker.record->message;
    json["traceback"] = worker.record->trace;
  }
  if (!worker.evidence.empty()) json["evidence"] = worker.evidence;
  if (!worker.core_dump.empty()) json["core_dump"] = worker.core_dump;
  if (!worker.stderr_end.empty()) json["stderr_end"] = worker.stderr_end;
  return json;
}

// A cause that is no worker of this node. Only what the rendezvous told is known here.
Json foreign_cause(const rendezvous::Failure& cause) {
  Json json = {{"hostname", cause.hostname}, {"reason", cause.message}};
  if (cause.rank < 0) return json;
  json["rank"] = cause.rank;
  json["local_rank"] = cause.local_rank;
  json["exit_code"] = cause.exit_code;
  if (cause.exit_code < 0) json["signal"] = signal_name(-cause.exit_code);
  return json;
}

// The first reason that holds. A signal comes before the others: the user or the scheduler asked
// for the end, whatever failed after that.
std::string_view ended_by(const Ending& ending) {
  if (ending.succeeded) return "success";
  if (ending.drained || ending.stopped) return "operator";
  if (ending.signal != 0) return "signal";
  if (ending.session_error) return "rendezvous";
  if (ending.launcher_failed) return "launcher";
  return ending.cause && ending.cause->rank >= 0 ? "worker" : "node";
}

}  // namespace

std::string error_report_json(const ReportFacts& facts, const Ending& ending, int exit_code) {
  // `schema` is raised when a field changes its meaning (docs/torchrun.md).
  Json json = {{"schema", 1},
               {"succeeded", ending.succeeded},
               {"ended_by", ended_by(ending)},
               {"exit_code", exit_code},
               {"entry", facts.entry},
               {"run_id", facts.run_id},
               {"hostname", facts.hostname},
               {"node_rank", facts.node_rank},
               {"attempt", facts.restarts + 1},
               {"max_restarts", facts.max_restarts}};
  if (ending.no_progress) json["no_progress"] = ending.no_progress->sentence;
  if (ending.signal != 0) json["signal"] = signal_name(ending.signal);
  if (ending.session_error) json["message"] = ending.session_error->message();
  const auto cause = root_cause(facts);
  if (cause) {
    json["root_cause"] = worker_json(facts, facts.workers[*cause]);
  } else if (ending.cause) {
    json["root_cause"] = foreign_cause(*ending.cause);
  }
  Json others = Json::array();
  for (std::size_t i = 0; i < facts.workers.size(); ++i) {
    if (i != cause) others.push_back(worker_json(facts, facts.workers[i]));
  }
  json["other_workers"] = std::move(others);
  Json incidents = Json::array();
  for (const Incident& incident : facts.incidents)
    incidents.push_back(Json::parse(incident_json(incident)));
  json["incidents"] = std::move(incidents);
  return json.dump(2, ' ', true, Json::error_handler_t::replace) + "\n";
}

}  // namespace ddprun::agent
