#include "launcher/scheduler/platform_facts.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "launcher/scheduler/variables.h"
#include "proto/host_list.h"
#include "proto/scheduler_variables.h"

namespace ddprun::launcher {

namespace names = scheduler_variables;

namespace {

// Null if there is no such member.
nlohmann::json member(const nlohmann::json& object, const char* name) {
  const auto found = object.is_object() ? object.find(name) : object.end();
  return found == object.end() ? nlohmann::json() : *found;
}

// One reading: the row, the variables, and what is found in them.
class Platform {
 public:
  Platform(const SchedulerRow& row, const EnvLookup& env, const SchedulerInputs& inputs)
      : row_(row), env_(env), inputs_(inputs) {
    found_.scheduler = row.scheduler;
    found_.is_step = true;
    found_.gpus = variable_number(env, row.gpus).value_or(0);
  }

  SchedulerFacts read() {
    const auto* const own = std::find_if(kReaders.begin(), kReaders.end(), [&](const Reader& one) {
      return one.scheduler == row_.scheduler;
    });
    if (own != kReaders.end()) {
      (this->*own->read)();
    } else {
      read_nodes_and_rank();
      read_first_host();
    }
    const std::string job = text(row_.job);
    found_.id = fmt::format("{}-{}", row_.id, job.empty() ? found_.first_host : job);
    return std::move(found_);
  }

 private:
  struct Reader {
    Scheduler scheduler;
    void (Platform::*read)();
  };
  // Those that are not nodes, a rank and hosts in variables.
  static const std::array<Reader, 6> kReaders;

  std::string text(std::string_view name) const { return variable_text(env_, name); }

  void problem(std::string_view name, std::string_view expected) {
    if (found_.problem.empty())
      found_.problem = fmt::format("{}={}: expected {}", name, text(name), expected);
  }

  void set_rank(int rank, std::string_view nodes_shown) {
    if (rank < 0 || rank >= found_.nodes)
      return problem(row_.rank, fmt::format("a number below {}", nodes_shown));
    found_.node_rank = rank;
  }

  void read_nodes_and_rank() {
    const int nodes = variable_number(env_, row_.nodes).value_or(0);
    if (nodes < 1) return problem(row_.nodes, "a number above 0");
    found_.nodes = nodes;
    if (nodes == 1) return;
    set_rank(variable_number(env_, row_.rank).value_or(-1),
             fmt::format("{}={}", row_.nodes, nodes));
  }

  // A list of addresses in lines, or with commas; or one address.
  void read_first_host() {
    if (row_.scheduler == Scheduler::kLepton) return read_lepton_host();
    const std::string hosts = text(row_.hosts);
    const auto first = hosts.find_first_not_of(" \t\r\n,");
    if (first == std::string::npos) return;
    found_.first_host = hosts.substr(first, hosts.find_first_of(" \t\r\n,", first) - first);
  }

  // As the start script of Lepton's jobs makes it.
  void read_lepton_host() {
    const std::string job = text(row_.job);
    std::string prefix = text(names::kLeptonPrefix);
    std::string domain = text(names::kLeptonSubdomain);
    if (prefix.empty()) prefix = job;
    if (domain.empty() && !job.empty()) domain = job + "-job-svc";
    if (!prefix.empty() && !domain.empty())
      found_.first_host = fmt::format("{}-0.{}", prefix, domain);
  }

  // Flux counts tasks. With one on each node their numbers are those of the nodes. No variable has
  // the hosts: Flux's own program knows them.
  void read_flux() {
    const int nodes = std::max(1, variable_number(env_, row_.nodes).value_or(1));
    const int tasks = variable_number(env_, row_.tasks).value_or(nodes);
    found_.nodes = nodes;
    found_.most_tasks = std::max(1, (tasks + nodes - 1) / nodes);
    if (found_.most_tasks > 1) return;
    read_nodes_and_rank();
    found_.first_host = text("MASTER_ADDR");
    if (nodes == 1 || !found_.first_host.empty() || !inputs_.ask) return;
    const auto said = inputs_.ask({"flux", "hostlist", "local"});
    if (!said) return;
    const auto hosts = parse_host_list(said->substr(0, said->find_first_of(" \r\n")));
    if (hosts && hosts->size() == static_cast<std::size_t>(nodes))
      found_.first_host = hosts->front();
  }

  void read_sagemaker() {
    const auto hosts = nlohmann::json::parse(text(row_.hosts), nullptr, false);
    const auto is_text = [](const nlohmann::json& one) { return one.is_string(); };
    if (!hosts.is_array() || hosts.empty() || !std::all_of(hosts.begin(), hosts.end(), is_text))
      return problem(row_.hosts, "a JSON list of hosts");
    found_.nodes = static_cast<int>(std::min<std::size_t>(hosts.size(), kMaxHosts));
    found_.first_host = hosts.front().get<std::string>();
    const auto own = std::find(hosts.begin(), hosts.end(), text(row_.rank));
    if (own == hosts.end()) return problem(row_.rank, fmt::format("one of {}", text(row_.hosts)));
    found_.node_rank = static_cast<int>(own - hosts.begin());
  }

  // A job of type pytorch has a process for each rank, and one on each node is right.
  void read_azure() {
    if (variable_number(env_, row_.nodes) == 1 && text("LOCAL_RANK").empty()) return;
    if (text(row_.rank).empty() || text(row_.hosts).empty()) {
      return problem(row_.nodes, fmt::format("{} and {} beside it, as {} in the job sets them",
                                             row_.rank, row_.hosts, row_.setting));
    }
    read_nodes_and_rank();
    read_first_host();
    const int ranks = variable_number(env_, row_.tasks).value_or(found_.nodes);
    found_.most_tasks = std::max(1, ranks / found_.nodes);
  }

  // Pools 0 and 1 are the job's workers; others are for parameter servers and evaluators.
  void read_vertex() {
    const auto spec = nlohmann::json::parse(text(row_.hosts), nullptr, false);
    const auto task = member(spec, "task");
    const auto own = member(task, "type");
    const auto index = member(task, "index");
    std::vector<std::string> hosts;
    std::int64_t rank = -1;
    for (const char* pool : {"workerpool0", "workerpool1"}) {
      if (own == pool && index.is_number_integer())
        rank = std::min<std::int64_t>(index.get<std::int64_t>(), kMaxHosts) + std::ssize(hosts);
      for (const auto& host : member(member(spec, "cluster"), pool))
        if (host.is_string()) hosts.push_back(host.get<std::string>());
    }
    if (hosts.size() < 2) return;
    found_.nodes = static_cast<int>(std::min<std::size_t>(hosts.size(), kMaxHosts));
    found_.first_host = hosts.front().substr(0, hosts.front().find(':'));
    if (rank < 0 || rank >= found_.nodes)
      return problem(row_.hosts, "a task of workerpool0 or workerpool1");
    found_.node_rank = static_cast<int>(rank);
  }

  // The Ascend operator counts NPUs in WORLD_SIZE, and nodes in RANK.
  void read_mind_cluster() {
    const int npus = variable_number(env_, row_.nodes).value_or(0);
    const int on_a_node = std::max(1, found_.gpus);
    if (npus < 1 || npus % on_a_node != 0)
      return problem(row_.nodes, fmt::format("a multiple of {}={}", row_.gpus, on_a_node));
    found_.nodes = npus / on_a_node;
    read_first_host();
    set_rank(variable_number(env_, row_.rank).value_or(-1),
             fmt::format("the number of nodes, {}", found_.nodes));
  }

  // A job has tasks, and each task has pods. Nothing says which task comes first.
  void read_volcano() {
    std::vector<std::string> hosts;
    int tasks = 0;
    for (const std::string& name :
         inputs_.variable_names ? inputs_.variable_names() : std::vector<std::string>()) {
      if (!name.starts_with("VC_") || !name.ends_with("_HOSTS")) continue;
      const auto own = parse_host_list(text(name));
      if (!own || own->empty()) continue;
      hosts.insert(hosts.end(), own->begin(), own->end());
      ++tasks;
    }
    const auto index = variable_number(env_, row_.rank);
    if (!index) return problem(row_.rank, "a number");
    if (hosts.empty() && *index > 0) {
      return problem(row_.rank,
                     "the hosts of the tasks beside it, as `plugins: {svc: []}` in the job sets "
                     "them, or --standalone for a job on this pod alone");
    }
    found_.nodes = std::max(1, static_cast<int>(std::min<std::size_t>(hosts.size(), kMaxHosts)));
    if (tasks > 1) {
      found_.problem = fmt::format(
          "this Volcano job has {} tasks with {} pods, and nothing says which is the first: type "
          "--nnodes={} --rdzv-backend=c10d --rdzv-id=NAME --rdzv-endpoint={}, or --standalone for "
          "a job on this pod alone",
          tasks, hosts.size(), hosts.size(), hosts.front());
      return;
    }
    if (hosts.empty()) return;
    found_.first_host = hosts.front();
    set_rank(*index, fmt::format("the number of pods, {}", found_.nodes));
  }

  const SchedulerRow& row_;
  const EnvLookup& env_;
  const SchedulerInputs& inputs_;
  SchedulerFacts found_{};
};

constexpr std::array<Platform::Reader, 6> Platform::kReaders = {
    Reader{Scheduler::kFlux, &Platform::read_flux},
    Reader{Scheduler::kSageMaker, &Platform::read_sagemaker},
    Reader{Scheduler::kAzureMl, &Platform::read_azure},
    Reader{Scheduler::kVertex, &Platform::read_vertex},
    Reader{Scheduler::kMindCluster, &Platform::read_mind_cluster},
    Reader{Scheduler::kVolcano, &Platform::read_volcano}};

bool is_set(const EnvLookup& env, std::string_view name) {
  return !variable_text(env, name).empty();
}

bool is_cluster_of_vertex(const std::string& text) {
  const auto spec = nlohmann::json::parse(text, nullptr, false);
  return member(member(spec, "cluster"), "workerpool0").is_array();
}

// LOCAL_RANK is a list there. Other launchers give one rank, and their ranks are not ours. A list
// of one NPU looks alike, but the operator works in pods alone.
bool is_of_ascend_operator(const SchedulerRow& row, const EnvLookup& env) {
  const std::string ranks = variable_text(env, "LOCAL_RANK");
  const bool is_list = ranks.find(',') != std::string::npos ||
                       (!ranks.empty() && variable_number(env, row.gpus) == 1 &&
                        is_set(env, names::kKubernetesService));
  return is_list && is_set(env, row.nodes) && is_set(env, row.rank) && is_set(env, row.hosts);
}

}  // namespace

bool is_on_platform(const SchedulerRow& row, const EnvLookup& env) {
  if (row.scheduler == Scheduler::kRunPod) return is_set(env, row.nodes) && is_set(env, row.rank);
  if (row.scheduler == Scheduler::kVertex)
    return is_cluster_of_vertex(variable_text(env, row.hosts));
  if (row.scheduler == Scheduler::kMindCluster) return is_of_ascend_operator(row, env);
  if (row.scheduler != Scheduler::kVolcano) return true;
  // Its plugin for PyTorch says more, as other operators do.
  return !is_set(env, "MASTER_ADDR") || !is_set(env, "WORLD_SIZE") || !is_set(env, "RANK");
}

SchedulerFacts read_platform(const SchedulerRow& row, const EnvLookup& env,
                             const SchedulerInputs& inputs) {
  return Platform(row, env, inputs).read();
}

}  // namespace ddprun::launcher
