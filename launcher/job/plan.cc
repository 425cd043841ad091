#include "launcher/job/plan.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "launcher/scheduler/start_mark.h"
#include "proto/scheduler_variables.h"

namespace ddprun::launcher {
namespace {

static_assert(kMaxNodes == agent::kMaxNodes,
              "--nnodes must not promise more than a rendezvous holds");

constexpr const char* kTokenFileVariable = "DDPRUN_TOKEN_FILE";
// A pod may mount a secret here, with the key `token`.
constexpr const char* kPodTokenFile = "/var/run/secrets/ddprun/token";
// Seconds after 1970, for workers that save before the end.
constexpr const char* kDeadlineVariable = "DDPRUN_DEADLINE";

// Returns whether `variables` sets `name`, also to an empty text.
bool has(const std::vector<std::string>& variables, const std::string& name) {
  return std::any_of(variables.begin(), variables.end(),
                     [&](const std::string& entry) { return entry.starts_with(name + "="); });
}

// kLocal keeps the plan's default host and port: nothing listens for other nodes.
agent::RendezvousPlan rendezvous_plan(const Options& options, const std::string& token) {
  agent::RendezvousPlan plan{.min_nodes = options.nodes.min,
                             .max_nodes = options.nodes.max,
                             .node_rank = options.node_rank,
                             .is_host = options.rendezvous_conf.is_host,
                             .run_id = options.run_id,
                             .token = token,
                             .tls = options.rendezvous_conf.tls,
                             .local_addr = options.local_addr.value_or(""),
                             .settings = options.rendezvous_conf.settings,
                             .resumes = options.rendezvous_conf.resumes,
                             .shares_store = options.shares_store,
                             .connect_timeout = options.rendezvous_conf.read_timeout};
  plan.settings.node_unit = options.node_unit;
  switch (options.rendezvous) {
    case Rendezvous::kLocal:
      plan.kind = agent::RendezvousPlan::Kind::kAlone;
      plan.node_rank = -1;
      return plan;
    case Rendezvous::kStatic:
      plan.kind = agent::RendezvousPlan::Kind::kStatic;
      // The static backend has one limit for everything (`timeout` in --rdzv-conf).
      plan.settings.join_timeout = plan.connect_timeout = options.rendezvous_conf.timeout;
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
  plan.port_count = options.port_count;
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

void set_threads(const Options& options, Plan& plan) {
  std::vector<std::string>& variables = plan.agent.base_env;
  const auto threads = worker_threads(options);
  if (!threads || has(variables, "OMP_NUM_THREADS")) return;
  variables.push_back(fmt::format("OMP_NUM_THREADS={}", *threads));
  plan.notices.push_back(
      fmt::format("OMP_NUM_THREADS is not set: set to {} for each worker, {}", *threads,
                  options.cpus_per_task > 0
                      ? fmt::format("its part of SLURM_CPUS_PER_TASK={}", options.cpus_per_task)
                      : std::string("so that they do not fight for the CPUs; set it to tune")));
}

// Workers get everything that we have, but no secret.
bool is_withheld(const std::string& entry) {
  // Those of a job in which we are ourselves a worker (agent/standby).
  for (const char* outer : {"DDPRUN_PAGE=", "DDPRUN_HOOK=", "DDPRUN_PYTHONPATH=",
                            "DDPRUN_STARTED_IN=", "DDPRUN_CHECK_REPLICAS="}) {
    if (entry.starts_with(outer)) return true;
  }
  // etcd's password.
  if (entry.starts_with("PET_RDZV_CONF=") && entry.find("password=") != std::string::npos)
    return true;
  return entry.starts_with(std::string(kTokenVariable) + "=");
}

// How attempts and the job end, and with which code.
void plan_the_end(const Options& options, agent::AgentConfig& agent) {
  agent.notice_deadline = options.preempt_deadline;
  agent.notice_file = options.preempt_file;
  agent.exit_preempted = options.exit_preempted;
  agent.detailed_exit_codes = options.detailed_exit_codes;
  agent.exits = options.exits;
  agent.device_timeout = options.device_timeout;
  agent.device_timeout_ends_job = options.device_timeout_ends_job;
}

}  // namespace

// Checks lengths for several nodes only: their host would start, and the others could not join.
Result<std::string> job_token(const Options& options, const EnvLookup& env) {
  const auto too_long = [&](const char* what, const std::string& text, std::size_t most) {
    return options.nodes.max > 1 && text.size() > most
               ? std::optional(Error(
                     ErrorCode::kInvalidArgument,
                     fmt::format("{}: expected at most {} bytes, got {}", what, most, text.size())))
               : std::nullopt;
  };
  if (const auto error = too_long("--rdzv-id", options.run_id, kMaxJobBytes)) return *error;
  if (const auto token = env(kTokenVariable); token && !token->empty()) {
    if (const auto error = too_long(kTokenVariable, *token, kMaxTokenBytes)) return *error;
    return *token;
  }
  const auto path = env(kTokenFileVariable);
  if (path && !path->empty())
    return read_token_file(*path, fmt::format("{}={}", kTokenFileVariable, *path));
  if (env(scheduler_variables::kKubernetesService) && ::access(kPodTokenFile, F_OK) == 0)
    return read_token_file(kPodTokenFile, kPodTokenFile);
  return std::string();
}

std::optional<int> worker_threads(const Options& options) {
  if (options.cpus_per_task > 0)
    return std::max(1, options.cpus_per_task / options.workers_per_node);
  return options.workers_per_node > 1 ? std::optional(1) : std::nullopt;
}

Plan make_plan(const Options& options, const Command& command, Inheritance inherited) {
  Plan plan;
  agent::AgentConfig& agent = plan.agent;
  agent.rendezvous = rendezvous_plan(options, inherited.token);
  agent.rendezvous.token_is_optional = inherited.token_is_optional;
  agent.worker_count = options.workers_per_node;
  agent.role = options.role;
  agent.restarts = options.restarts;
  agent.signals = options.signals;
  agent.grace = options.shutdown_timeout;
  agent.teardown_timeout = options.teardown_timeout;
  agent.on_hang = options.on_hang;
  plan_the_end(options, agent);
  agent.check_replicas = options.check_replicas;
  agent.log_dir = options.log_dir.value_or("");
  agent.streams = stream_plans(options);
  agent.output = options.output;
  agent.virtual_devices = options.virtual_devices;
  agent.device_variables = options.device_variables;
  agent.standby = options.standby;
  agent.share_imports = options.share_imports;
  agent.python_hook = options.python_hook;
  agent.quiet = options.quiet;
  agent.console_events = options.console_events;
  agent.error_report = options.error_report;
  agent.error_file = options.error_file;
  agent.watch = options.watch;
  agent.http = options.http;
  // Copies the command: the agent calls this at every attempt, when `options` may be gone.
  agent.command = [command](int local_rank) {
    return agent::WorkerProgram{command.program(), command.argv(local_rank)};
  };
  agent.called = std::move(inherited.called);
  agent.job_cookie = std::move(inherited.job_cookie);
  agent.entry = command.entry;
  agent.hands_local_rank = options.local_rank_argument;
  agent.base_env = std::move(inherited.variables);
  std::erase_if(agent.base_env, is_withheld);
  plan.notices = options.notices;
  if (!options.start_mark.empty())
    agent.base_env.push_back(fmt::format("{}={}", kStartMarkVariable, options.start_mark));
  set_threads(options, plan);
  if (options.ends_at) {
    std::erase_if(agent.base_env, [](const std::string& entry) {
      return entry.starts_with(std::string(kDeadlineVariable) + "=");
    });
    agent.base_env.push_back(
        fmt::format("{}={}", kDeadlineVariable, options.ends_at->time_since_epoch().count()));
  }
  // torchrun sets this too: a collective that hangs then ends its worker with an error.
  if (!has(agent.base_env, "TORCH_NCCL_ASYNC_ERROR_HANDLING"))
    agent.base_env.emplace_back("TORCH_NCCL_ASYNC_ERROR_HANDLING=1");
  // CUDA's own order begins with the fastest GPU. A user's choice stays.
  if (command.needs_pci_order && !has(agent.base_env, "CUDA_DEVICE_ORDER"))
    agent.base_env.emplace_back("CUDA_DEVICE_ORDER=PCI_BUS_ID");
  if (options.quiet) plan.notices.clear();
  return plan;
}

}  // namespace ddprun::launcher
