#include "launcher/doctor/doctor.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "base/allowed_cpus.h"
#include "base/numbers.h"
#include "launcher/doctor/gather.h"
#include "launcher/doctor/judge.h"
#include "launcher/job/plan.h"
#include "launcher/scheduler/cpu_quota.h"
#include "launcher/scheduler/run_child.h"

namespace ddprun::launcher {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::string_view kDoctor = "doctor";
constexpr const char* kYes = "yes";
constexpr const char* kNo = "no";
// For what is found to be judged, and to be handed over.
constexpr std::chrono::milliseconds kToSayIt{200};

// OMP_NUM_THREADS as workers get it. 0: each takes all processors.
int threads_of(const Options& options, const EnvLookup& env) {
  const auto text = env("OMP_NUM_THREADS");
  if (!text) return worker_threads(options).value_or(0);
  return std::max(0, leading_number<int>(*text).value_or(0));
}

// Those of NCCL and Gloo that the doctor knows.
std::map<std::string, std::string> network_variables(const EnvLookup& env) {
  std::map<std::string, std::string> found;
  for (const char* name : {"NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "NCCL_IB_HCA",
                           "NCCL_IB_DISABLE", "NCCL_P2P_DISABLE", "NCCL_P2P_LEVEL", "NCCL_NET"}) {
    if (const auto value = env(name); value && !value->empty()) found[name] = *value;
  }
  return found;
}

// Only a node that must have this very port and no other one.
std::uint16_t served_port(const Options& options) {
  const bool is_host =
      (options.rendezvous == Rendezvous::kStatic && options.node_rank == 0) ||
      (options.rendezvous == Rendezvous::kC10d && options.rendezvous_conf.is_host.value_or(false));
  return is_host && options.port_count == 1 ? options.endpoint.port.value_or(0) : 0;
}

// A folder that does not answer has no file.
bool has_file(const std::string& path, const CommandFacts& files, Clock::time_point end) {
  const auto question = [&]() -> std::string {
    const FileKind kind = files.inspect(path).kind;
    return kind != FileKind::kMissing && kind != FileKind::kDirectory ? kYes : kNo;
  };
  return run_child(question, end) == kYes;
}

// Returns the facts of this node that the others compare. A program needs no torch.
Peer peer_of(const NodeFacts& facts) {
  Peer peer{.host_name = facts.host_name};
  if (facts.python && !is_program(facts)) peer.torch = facts.python->torch;
  if (facts.gpus && !facts.gpus->rows.empty()) peer.driver = facts.gpus->rows.front().driver;
  return peer;
}

// A node of which not even the child that looks at it answers.
Examination unanswered() {
  return {.self = {.host_name = own_host_name()},
          .findings = {{Level::kFailure, "node", "does not answer in time",
                        "`ps -eo pid,stat,wchan:30,cmd | grep ' D'` shows what hangs"}}};
}

}  // namespace

std::optional<Result<DoctorCall>> doctor_call(const Options& options, const CommandFacts& files,
                                              Clock::time_point end) {
  if (options.script != kDoctor || options.mode != Mode::kScript) return std::nullopt;
  if (has_file(options.script, files, end)) return std::nullopt;
  DoctorCall call;
  // Behind SCRIPT are the words of the job's own line, and --json where it was typed last.
  for (const std::string& word : options.script_args) {
    if (word == "--json") {
      call.json = true;
    } else if (call.script.empty() && word.starts_with('-')) {
      return Error(ErrorCode::kInvalidArgument,
                   fmt::format("doctor {}: expected `doctor [--json] [SCRIPT]`", word));
    } else if (call.script.empty()) {
      call.script = word;
    }
  }
  return call;
}

NodeQuestion node_question(const Options& options, const std::string& script, const EnvLookup& env,
                           const Accelerators& accelerators) {
  NodeQuestion question{.workers = options.workers_per_node,
                        .nodes = options.nodes.max,
                        .mode = options.mode,
                        .script = options.mode == Mode::kModule ? std::string() : script,
                        .served_port = served_port(options),
                        .temporary_folder = env("TMPDIR").value_or("/tmp"),
                        .threads = threads_of(options, env),
                        .quota = cpu_quota("/"),
                        .allowed_cpus = std::max(1, static_cast<int>(allowed_cpus().size())),
                        .variables = network_variables(env)};
  for (const AcceleratorCount& one : accelerators) {
    if (one.kind == AcceleratorKind::kNvidia)
      question.gpus = one.visible;
    else
      question.others.push_back(one);
  }
  // etcd's endpoint is a list, and is asked as a whole when the job starts.
  if (options.rendezvous != Rendezvous::kLocal && options.rendezvous != Rendezvous::kEtcd)
    question.endpoint_host = options.endpoint.host;
  // A scheduler's is the first of a block, and any of them will do.
  if (!question.endpoint_host.empty() && options.port_count == 1)
    question.endpoint_port = options.endpoint.port.value_or(0);
  question.may_serve_endpoint = options.rendezvous == Rendezvous::kStatic
                                    ? options.node_rank == 0
                                    : options.rendezvous_conf.is_host.value_or(true);
  return question;
}

Examination examine_node(const NodeQuestion& question, const CommandFacts& files,
                         Clock::time_point end) {
  const auto look = [&] {
    const NodeFacts facts = gather_node(question, files, end);
    return write_examination({.self = peer_of(facts), .findings = judge_node(question, facts)});
  };
  const auto text = run_child(look, end + kToSayIt);
  const auto found = text ? read_examination(*text) : std::nullopt;
  return found ? *found : unanswered();
}

bool can_meet(const Findings& findings) {
  return std::none_of(findings.begin(), findings.end(), [](const Finding& one) {
    return one.level == Level::kFailure && (one.what == "port" || one.what == "endpoint");
  });
}

}  // namespace ddprun::launcher
