#include "launcher/doctor/doctor.h"

#include <fmt/format.h>
#include <sched.h>

#include <algorithm>
#include <charconv>
#include <string_view>

#include "launcher/doctor/gather.h"
#include "launcher/doctor/judge.h"
#include "launcher/surroundings/cpu_quota.h"

namespace ddprun::launcher {
namespace {

constexpr std::string_view kDoctor = "doctor";

int allowed_cpus() {
  cpu_set_t set{};
  return ::sched_getaffinity(0, sizeof(set), &set) == 0 ? std::max(1, CPU_COUNT(&set)) : 1;
}

// The threads of each worker, as set_threads() in plan.cc has them.
int threads_of(const Options& options, const EnvLookup& env) {
  if (const auto text = env("OMP_NUM_THREADS")) {
    int threads = 0;
    std::from_chars(text->data(), text->data() + text->size(), threads);
    return std::max(0, threads);
  }
  if (options.cpus_per_task > 0)
    return std::max(1, options.cpus_per_task / options.workers_per_node);
  return options.workers_per_node > 1 ? 1 : 0;
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

// The interpreter that build_command() would take.
std::string python_of(const CommandFacts& facts) {
  if (facts.python_exec) return facts.find_on_path(*facts.python_exec).value_or(*facts.python_exec);
  if (facts.python_beside_us) return *facts.python_beside_us;
  return facts.find_on_path("python3").value_or("");
}

}  // namespace

std::optional<Result<DoctorCall>> doctor_call(const Options& options, const CommandFacts& facts) {
  if (options.script != kDoctor || options.mode != Mode::kScript) return std::nullopt;
  const FileKind kind = facts.inspect(options.script).kind;
  if (kind != FileKind::kMissing && kind != FileKind::kDirectory) return std::nullopt;
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
                           const CommandFacts& facts) {
  NodeQuestion question{.workers = options.workers_per_node,
                        .nodes = options.nodes.max,
                        .python = python_of(facts),
                        .script = script,
                        .served_port = served_port(options),
                        .temporary_folder = env("TMPDIR").value_or("/tmp"),
                        .threads = threads_of(options, env),
                        .quota = cpu_quota("/"),
                        .allowed_cpus = allowed_cpus(),
                        .variables = network_variables(env)};
  // etcd's endpoint is a list, and is asked as a whole when the job starts.
  if (options.rendezvous != Rendezvous::kLocal && options.rendezvous != Rendezvous::kEtcd)
    question.endpoint_host = options.endpoint.host;
  // A scheduler's is the first of a block, and any of them will do.
  if (!question.endpoint_host.empty() && options.port_count == 1)
    question.endpoint_port = options.endpoint.port.value_or(0);
  question.may_serve_endpoint = options.rendezvous == Rendezvous::kStatic
                                    ? options.node_rank == 0
                                    : options.rendezvous_conf.is_host.value_or(true);
  const bool is_path = options.mode != Mode::kModule;
  question.is_module = !is_path;
  if (!is_path) question.script.clear();
  if (!script.empty() && is_path) {
    const FileKind kind = facts.inspect(script).kind;
    question.is_program =
        options.mode == Mode::kProgram || kind == FileKind::kElf || kind == FileKind::kOtherScript;
  }
  return question;
}

Examination examine_node(const NodeQuestion& question) {
  Examination found{.facts = gather_node(question)};
  found.findings = judge_node(question, found.facts);
  return found;
}

bool can_meet(const Findings& findings) {
  return std::none_of(findings.begin(), findings.end(), [](const Finding& one) {
    return one.level == Level::kFailure && (one.what == "port" || one.what == "endpoint");
  });
}

Peer peer_of(const NodeFacts& facts) {
  Peer peer{.host_name = facts.host_name};
  if (facts.python) peer.torch = facts.python->torch;
  if (facts.gpus && !facts.gpus->rows.empty()) peer.driver = facts.gpus->rows.front().driver;
  return peer;
}

}  // namespace ddprun::launcher
