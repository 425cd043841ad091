#include "rendezvous/control/pages/metrics_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <functional>
#include <initializer_list>
#include <iterator>
#include <map>
#include <span>
#include <utility>

#include "base/duration.h"
#include "base/net/http/escape.h"

namespace ddprun::http {
namespace {

using Label = std::pair<std::string_view, std::string_view>;

// Samples of one metric must stand together, below its HELP and TYPE.
class Text {
 public:
  void family(std::string_view name, std::string_view type, std::string_view help) {
    name_ = name;
    fmt::format_to(std::back_inserter(text_), "# HELP ddprun_{} {}\n# TYPE ddprun_{} {}\n", name,
                   help, name, type);
  }
  template <typename Value>
  void sample(std::initializer_list<Label> labels, Value value, std::string_view ending = "") {
    fmt::format_to(std::back_inserter(text_), "ddprun_{}{}", name_, ending);
    char before = '{';
    for (const auto& [label, text] : labels) {
      fmt::format_to(std::back_inserter(text_), "{}{}=\"{}\"", before, label, escape_label(text));
      before = ',';
    }
    fmt::format_to(std::back_inserter(text_), "{} {}\n", before == ',' ? "}" : "", value);
  }
  template <typename Value>
  void single(std::string_view name, std::string_view type, std::string_view help, Value value) {
    family(name, type, help);
    sample({}, value);
  }
  std::string take() { return std::move(text_); }

 private:
  std::string text_;
  std::string_view name_;
};

double unix_seconds(WallTime time) { return in_seconds(time.time_since_epoch()); }

void process(const StatusReport& report, Text& text) {
  text.family("info", "gauge", "The program that answers; always 1.");
  text.sample({{"program", report.program}, {"hostname", report.hostname}}, 1);
  text.single("start_time_seconds", "gauge", "When it was started, in seconds since 1970.",
              unix_seconds(report.started));
  text.single("healthy", "gauge", "1 if /healthz answers 200.", report.unhealthy.empty() ? 1 : 0);
  text.single("leader", "gauge", "1 if the rendezvous is in this process.",
              report.is_leader ? 1 : 0);
  std::map<std::string_view, int> states;
  for (const JobStatus& job : report.jobs) ++states[job.state];
  text.family("jobs", "gauge", "Jobs that this process knows, by state.");
  for (const auto& [state, count] : states) text.sample({{"state", state}}, count);
}

using Jobs = std::span<const JobStatus>;

// One sample a job that knows the value.
template <typename Value>
void each_job(Text& text, Jobs jobs, std::string_view name, std::string_view help, Value value) {
  text.family(name, "gauge", help);
  for (const JobStatus& job : jobs) text.sample({{"job", job.id}}, std::invoke(value, job));
}

void nodes(Text& text, Jobs jobs) {
  text.family("nodes", "gauge",
              "Nodes of the job: in the round, waiting for the next one, spare. The last two are "
              "known where the rendezvous is.");
  for (const JobStatus& job : jobs) {
    text.sample({{"job", job.id}, {"state", "in_round"}}, job.nodes_in_round);
    if (job.nodes_waiting) text.sample({{"job", job.id}, {"state", "waiting"}}, *job.nodes_waiting);
    if (job.spares) text.sample({{"job", job.id}, {"state", "spare"}}, *job.spares);
  }
  text.family("sessions", "gauge",
              "Sessions that nodes have with the rendezvous, where it is in this process.");
  for (const JobStatus& job : jobs)
    if (job.sessions) text.sample({{"job", job.id}}, *job.sessions);
}

void job_metrics(Text& text, Jobs jobs) {
  each_job(text, jobs, "round", "Number of the job's round; it only grows.", &JobStatus::round);
  each_job(text, jobs, "world_size", "Workers of the round, on all nodes.", &JobStatus::world_size);
  nodes(text, jobs);
  each_job(text, jobs, "restarts_spent", "Restarts that the job has spent of its budget.",
           &JobStatus::restarts);
  each_job(text, jobs, "restarts_allowed", "The budget, --max-restarts.", &JobStatus::max_restarts);
  text.family("restarts_total", "counter",
              "Times that the workers were started anew, by reason. A resize spends no restart.");
  for (const JobStatus& job : jobs)
    for (const RestartCount& restart : job.restarts_by_reason)
      text.sample({{"job", job.id}, {"reason", restart.reason}}, restart.count);
}

void node_metrics(const NodeStatus& node, Text& text) {
  text.single("workers", "gauge", "Workers of this node that run.", node.workers_running);
  text.family("worker_steps", "gauge",
              "Optimizer steps of a worker of this node in this attempt, where it counts them.");
  for (const WorkerSteps& worker : node.steps)
    text.sample({{"rank", std::to_string(worker.rank)}}, worker.steps);
  text.family("incident_seconds", "summary",
              "What incidents cost on this node, by stage: seconds and how many.");
  for (const StageStatus& stage : node.stages) {
    text.sample({{"stage", stage.stage}}, stage.sum_s, "_sum");
    text.sample({{"stage", stage.stage}}, stage.count, "_count");
  }
  text.family("incident_last_seconds", "gauge", "The same of the last incident.");
  for (const StageStatus& stage : node.stages)
    if (stage.count > 0) text.sample({{"stage", stage.stage}}, stage.last_s);
  text.single("replica_differences_total", "counter",
              "Times that ranks differed in what should be the same (--check-replicas).",
              node.replica_differences);
  text.single("store_keys", "gauge", "Keys in this node's store.", node.store.keys);
  text.single("store_bytes", "gauge", "Bytes of the keys and values in this node's store.",
              node.store.bytes);
  text.single("store_connections", "gauge", "Connections to this node's store.",
              node.store.connections);
}

}  // namespace

std::string metrics_text(const StatusReport& report) {
  Text text;
  process(report, text);
  job_metrics(text, Jobs(report.jobs).first(std::min(report.jobs.size(), kMostJobsMeasured)));
  if (report.node) node_metrics(*report.node, text);
  return text.take();
}

}  // namespace ddprun::http
