#include "worker/startup/init_method/mpi_world.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string_view>

#include "base/numbers.h"
#include "proto/host_list.h"
#include "proto/job_ports.h"
#include "proto/scheduler_variables.h"

namespace ddprun::worker {

namespace names = scheduler_variables;

namespace {

// In the order in which they are looked for. An orted is itself a Slurm step, so MPI goes first;
// what PALS starts may have variables of MPICH.
struct Starter {
  std::string_view name;
  names::Names variables;
  std::string_view job;  // the variable that is the same on all ranks, and no other job's
  std::string_view hand_on;
  std::string_view by_host;  // what numbers the ranks host by host, as many on each
};
constexpr std::array kStarters = {
    Starter{"mpirun", names::kOpenMpi, names::kOpenMpi.job, "mpirun -x MASTER_ADDR=HOST",
            "`mpirun --map-by ppr:N:node` with `--rank-by slot`"},
    Starter{"PALS", names::kPals, names::kPals.job, "mpiexec --env MASTER_ADDR=HOST",
            "`mpiexec --ppn N`"},
    Starter{"mpiexec", names::kMpich, names::kMpich.job, "mpiexec -genv MASTER_ADDR HOST",
            "`mpiexec -ppn N`"},
    Starter{"srun", names::kSlurmStep, names::kSlurmStep.job, "srun --export=ALL,MASTER_ADDR=HOST",
            "`srun --distribution=block --ntasks-per-node=N`"},
    Starter{"jsrun", names::kJsrun, names::kJsrun.step, "jsrun -E MASTER_ADDR=HOST",
            "`jsrun --rs_per_host=N --tasks_per_rs=1 --launch_distribution=packed`"},
};

// The variables that only such a starter sets. A world of 1 in each of its processes would be a
// silent error.
constexpr std::array<std::string_view, 2> kSigns = {names::kPals.rank, names::kJsrun.ranks};

const Starter* find_starter(const EnvLookup& env) {
  for (const Starter& starter : kStarters) {
    const bool is_step = starter.name != "srun" || env(names::kSlurmStep.step).has_value();
    const bool is_complete = env(starter.variables.ranks) && env(starter.variables.rank) &&
                             env(starter.variables.local_rank);
    if (is_complete && is_step) return &starter;
  }
  return nullptr;
}

Error refusal(std::string message) { return {ErrorCode::kInvalidArgument, std::move(message)}; }

// Returns why a process without a complete starter is no process of its own; nothing if it is one.
std::optional<Error> incomplete(const EnvLookup& env) {
  for (const std::string_view sign : kSigns) {
    if (!env(sign)) continue;
    const auto* const starter =
        std::find_if(kStarters.begin(), kStarters.end(), [&](const Starter& one) {
          return one.variables.ranks == sign || one.variables.rank == sign;
        });
    return refusal(fmt::format(
        "{} is set, so {} starts this program, and {}, {} and {} are not all there: start it with "
        "ddprun, or let the ranks meet at a shared file (DDPRUN_INIT_METHOD=file:///PATH)",
        sign, starter->name, starter->variables.ranks, starter->variables.rank,
        starter->variables.local_rank));
  }
  return std::nullopt;
}

std::optional<int> parse_number(std::string_view text) {
  const auto number = leading_number<int>(text);
  return number && *number >= 0 && *number <= kMostRanks ? number : std::nullopt;
}

// The tasks of node `index` in a list such as `2(x3),1` (srun(1), SLURM_STEP_TASKS_PER_NODE).
std::optional<int> tasks_of(std::string_view list, int index) {
  while (!list.empty()) {
    const auto comma = std::min(list.find(','), list.size());
    const std::string_view entry = list.substr(0, comma);
    const auto open = std::min(entry.find('('), entry.size());
    const auto tasks = parse_number(entry.substr(0, open));
    const auto times = open == entry.size()
                           ? std::optional<int>(1)
                           : parse_number(entry.substr(std::min(open + 2, entry.size()),
                                                       entry.find(')') - open - 2));
    if (!tasks || !times) return std::nullopt;
    if (index < *times) return tasks;
    index -= *times;
    list.remove_prefix(std::min(comma + 1, list.size()));
  }
  return std::nullopt;
}

// One reading of one starter's variables.
class WorldReader {
 public:
  WorldReader(const Starter& starter, const EnvLookup& env)
      : starter_(starter), variables_(starter.variables), env_(env) {}

  Result<std::optional<StartedRank>> rank() {
    StartedRank started{.rank = number(variables_.rank), .ranks = number(variables_.ranks)};
    if (problem_) return *problem_;
    if (const std::string name = job(); !name.empty())
      started.job = fmt::format("{}-{}", starter_.name, name);
    // If the starter does not tell, hosts may be several.
    started.one_host = local_size() == started.ranks && !problem_;
    return std::optional(started);
  }

  Result<std::optional<WorkerEnv>> run(int parent) {
    world_.world_size = number(variables_.ranks);
    if (!problem_ && world_.world_size <= 1) return std::optional<WorkerEnv>();
    world_.rank = number(variables_.rank);
    world_.local_rank = number(variables_.local_rank);
    world_.local_world_size = local_size();
    if (problem_) return *problem_;
    if (world_.rank >= world_.world_size || world_.local_rank >= world_.local_world_size)
      return refusal(fmt::format("{} says {}={} of {}={}", starter_.name, variables_.rank,
                                 world_.rank, variables_.ranks, world_.world_size));
    if (auto wrong = place_on_hosts()) return *wrong;
    name_job(parent);
    world_.use_agent_store = true;
    return std::optional(world_);
  }

 private:
  std::string text(std::string_view name) const {
    return name.empty() ? std::string() : env_(name).value_or("");
  }

  int number(std::string_view name) {
    const auto value = parse_number(text(name));
    if (!value && !problem_)
      problem_ = refusal(fmt::format("{}={}: expected a number", name, text(name)));
    return value.value_or(0);
  }

  int local_size() {
    if (!variables_.local_ranks.empty()) return number(variables_.local_ranks);
    const std::string_view list = variables_.tasks;
    const auto tasks = tasks_of(text(list), number(variables_.node));
    if (!tasks && !problem_)
      problem_ = refusal(fmt::format("{}={}: expected a list of numbers", list, text(list)));
    return tasks.value_or(0);
  }

  // The host follows from the rank if ranks are numbered host by host, as many on each.
  std::optional<Error> place_on_hosts() {
    const int here = world_.local_world_size;
    if (here == world_.world_size) return std::nullopt;
    if (world_.rank % here != world_.local_rank || world_.world_size % here != 0)
      return refusal(
          fmt::format("{} does not number the ranks host by host, as many on each: type {}",
                      starter_.name, starter_.by_host));
    world_.node_rank = world_.rank / here;
    world_.node_count = world_.world_size / here;
    return find_first_host();
  }

  std::optional<Error> find_first_host() {
    world_.master_addr = text("MASTER_ADDR");
    if (!world_.master_addr.empty()) return std::nullopt;
    const std::string_view variable =
        variables_.hosts.empty() ? names::kSlurmJob.hosts : variables_.hosts;
    const auto hosts = parse_host_list(text(variable));
    if (!hosts)
      return refusal(fmt::format("{}={}: {}", variable, text(variable), hosts.error().message()));
    if (!hosts->empty()) {
      world_.master_addr = hosts->front();
      return std::nullopt;
    }
    return refusal(fmt::format(
        "{} starts this program on {} hosts, and nothing names the host of rank 0: type "
        "`{} …`, or start it with ddprun",
        starter_.name, world_.node_count, starter_.hand_on));
  }

  // Returns the starter's own name of the job; empty if it has none.
  std::string job() const {
    const std::string name = text(starter_.job);
    return starter_.name == "srun" ? name + "." + text(variables_.step) : name;
  }

  // The same on all ranks, and mostly no other job's; so is the port that follows from it.
  void name_job(int parent) {
    std::string name = job();
    // Two jobs of one allocation must not meet. If only their starter tells them apart, its pid
    // does.
    const bool by_parent = name.empty() && world_.node_count == 1;
    for (const std::string_view allocation : {names::kSlurmJob.job, names::kLsf.job})
      if (name.empty()) name = text(allocation);
    if (by_parent) name += fmt::format("parent-{}", parent);
    world_.run_id = fmt::format("{}-{}", starter_.name, name);
    world_.master_port = job_port_of(number_of_name(world_.run_id));
  }

  const Starter& starter_;
  const names::Names& variables_;  // the starter's
  const EnvLookup& env_;
  WorkerEnv world_;
  std::optional<Error> problem_;
};

}  // namespace

Result<std::optional<WorkerEnv>> mpi_world(const EnvLookup& env, int parent) {
  const Starter* const starter = find_starter(env);
  if (starter == nullptr) {
    if (auto wrong = incomplete(env)) return *wrong;
    return std::optional<WorkerEnv>();
  }
  return WorldReader(*starter, env).run(parent);
}

Result<std::optional<StartedRank>> started_rank(const EnvLookup& env) {
  const Starter* const starter = find_starter(env);
  if (starter == nullptr) return std::optional<StartedRank>();
  return WorldReader(*starter, env).rank();
}

}  // namespace ddprun::worker
