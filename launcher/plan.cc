#include "launcher/plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <utility>

namespace ddprun::launcher {
namespace {

static_assert(kMaxNodes == agent::kMaxNodes,
              "--nnodes must not promise more than a rendezvous holds");

// Workers must not get it: the token would show in every /proc/<pid>/environ below us and in core
// dumps.
constexpr const char* kTokenVariable = "DDPRUN_TOKEN";
constexpr const char* kTokenFileVariable = "DDPRUN_TOKEN_FILE";

// Whether `variables` sets `name`, also to an empty text.
bool has(const std::vector<std::string>& variables, const std::string& name) {
  return std::any_of(variables.begin(), variables.end(),
                     [&](const std::string& entry) { return entry.starts_with(name + "="); });
}

std::string trimmed(const std::string& text) {
  constexpr const char* kBlanks = " \t\r\n";
  const auto first = text.find_first_not_of(kBlanks);
  return first == std::string::npos
             ? std::string()
             : text.substr(first, text.find_last_not_of(kBlanks) - first + 1);
}

// kLocal keeps the plan's default host and port: nothing listens for other nodes.
agent::RendezvousPlan rendezvous_plan(const Options& options, const std::string& token) {
  agent::RendezvousPlan plan{.min_nodes = options.nodes.min,
                             .max_nodes = options.nodes.max,
                             .node_unit = options.node_unit,
                             .node_rank = options.node_rank,
                             .is_host = options.rendezvous_conf.is_host,
                             .run_id = options.run_id,
                             .token = token,
                             .local_addr = options.local_addr.value_or(""),
                             .join_timeout = options.rendezvous_conf.join_timeout,
                             .last_call = options.rendezvous_conf.last_call,
                             .resize_wait = options.rendezvous_conf.resize_wait,
                             .resize_interval = options.rendezvous_conf.resize_interval,
                             .connect_timeout = options.rendezvous_conf.read_timeout};
  switch (options.rendezvous) {
    case Rendezvous::kLocal:
      plan.kind = agent::RendezvousPlan::Kind::kAlone;
      plan.node_rank = -1;
      return plan;
    case Rendezvous::kStatic:
      plan.kind = agent::RendezvousPlan::Kind::kStatic;
      // The static backend has one limit for everything (`timeout` in --rdzv-conf).
      plan.join_timeout = plan.connect_timeout = options.rendezvous_conf.timeout;
      break;
    case Rendezvous::kC10d:
      plan.kind = agent::RendezvousPlan::Kind::kC10d;
      plan.keep_alive = {options.rendezvous_conf.keep_alive_interval,
                         options.rendezvous_conf.keep_alive_max_attempt};
      break;
    case Rendezvous::kEtcd:
      plan.kind = agent::RendezvousPlan::Kind::kEtcd;
      plan.etcd = options.rendezvous_conf.etcd;
      plan.keep_alive = {options.rendezvous_conf.keep_alive_interval,
                         options.rendezvous_conf.keep_alive_max_attempt};
      return plan;
  }
  plan.host = options.endpoint.host;
  plan.port = options.endpoint.port.value_or(0);
  return plan;
}

std::vector<agent::StreamPlan> stream_plans(const Options& options) {
  std::vector<agent::StreamPlan> plans;
  for (int local_rank = 0; local_rank < options.workers_per_node; ++local_rank) {
    const Streams redirect = options.redirects.of(local_rank);
    const Streams tee = options.tees.of(local_rank);
    plans.push_back({.redirect_stdout = has_out(redirect),
                     .redirect_stderr = has_err(redirect),
                     .tee_stdout = has_out(tee),
                     .tee_stderr = has_err(tee),
                     .shown = !options.shown_ranks || options.shown_ranks->contains(local_rank)});
  }
  return plans;
}

}  // namespace

Result<std::string> job_token(const Options& options, const EnvLookup& env) {
  if (const auto token = env(kTokenVariable); token && !token->empty()) return *token;
  const auto path = env(kTokenFileVariable);
  if (!path || path->empty()) return options.run_id;
  // Reads one byte more than allowed, to tell a file that is too long. A file that cannot be read
  // gives no bytes, and so an empty token.
  std::ifstream file(*path, std::ios::binary);
  std::string content(kMaxTokenBytes + 1, '\0');
  file.read(content.data(), static_cast<std::streamsize>(content.size()));
  content.resize(static_cast<std::size_t>(file.gcount()));
  const std::string token = trimmed(content);
  if (token.empty() || content.size() > kMaxTokenBytes)
    return Error(ErrorCode::kInvalidArgument,
                 fmt::format("{}={}: expected a readable file with a token of 1 to {} bytes",
                             kTokenFileVariable, *path, kMaxTokenBytes));
  return token;
}

Plan make_plan(const Options& options, const Command& command, Inherited inherited) {
  Plan plan;
  agent::AgentConfig& agent = plan.agent;
  agent.rendezvous = rendezvous_plan(options, inherited.token);
  agent.worker_count = options.workers_per_node;
  agent.role = options.role;
  agent.restarts = options.restarts;
  agent.signals = options.signals;
  agent.grace = options.shutdown_timeout;
  agent.log_dir = options.log_dir.value_or("");
  agent.streams = stream_plans(options);
  agent.output = options.output;
  agent.virtual_devices = options.virtual_devices;
  agent.detailed_exit_codes = options.detailed_exit_codes;
  agent.standby = options.standby;
  agent.python_hook = options.python_hook;
  agent.quiet = options.quiet;
  agent.console_events = options.console_events;
  agent.error_report = options.error_report;
  agent.error_file = options.error_file;
  agent.watch = options.watch;
  // Copies the command: the agent calls this at every attempt, when `options` may be gone.
  agent.command = [command](int local_rank) {
    return agent::WorkerProgram{command.program(), command.argv(local_rank)};
  };
  agent.called = std::move(inherited.called);
  agent.job_cookie = std::move(inherited.job_cookie);
  agent.entry = command.entry;
  agent.base_env = std::move(inherited.variables);
  // Workers get everything that we have but the token.
  std::erase_if(agent.base_env, [](const std::string& entry) {
    // Those of a job in which we are ourselves a worker (agent/standby).
    for (const char* outer : {"DDPRUN_PAGE=", "DDPRUN_HOOK=", "DDPRUN_PYTHONPATH="}) {
      if (entry.starts_with(outer)) return true;
    }
    // etcd's password.
    if (entry.starts_with("PET_RDZV_CONF=") && entry.find("password=") != std::string::npos)
      return true;
    return entry.starts_with(std::string(kTokenVariable) + "=");
  });
  // torchrun's rule: by default each worker starts a thread for each CPU, and several workers would
  // fight.
  if (options.workers_per_node > 1 && !has(agent.base_env, "OMP_NUM_THREADS")) {
    agent.base_env.emplace_back("OMP_NUM_THREADS=1");
    plan.notices.emplace_back(
        "OMP_NUM_THREADS is not set: set to 1 for each worker, so that they do not fight for the "
        "CPUs; set it to tune");
  }
  // torchrun sets this too: a collective that hangs then ends its worker with an error.
  if (!has(agent.base_env, "TORCH_NCCL_ASYNC_ERROR_HANDLING"))
    agent.base_env.emplace_back("TORCH_NCCL_ASYNC_ERROR_HANDLING=1");
  if (options.quiet) plan.notices.clear();
  return plan;
}

}  // namespace ddprun::launcher
