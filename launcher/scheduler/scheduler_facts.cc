#include "launcher/scheduler/scheduler_facts.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <string_view>

#include "base/numbers.h"
#include "launcher/scheduler/platform_facts.h"
#include "launcher/scheduler/start_mark.h"
#include "launcher/scheduler/variables.h"
#include "proto/host_list.h"
#include "proto/scheduler_variables.h"

namespace ddprun::launcher {

namespace names = scheduler_variables;

namespace {

// Slurm's steps that are no steps of tasks have other numbers. Batch, interactive, extern and
// pending ones are above this (slurm.h, SLURM_MAX_NORMAL_STEP_ID). sbatch and salloc start one
// process in them.
constexpr std::int64_t kMaxNormalStep = 0xfffffff0;
constexpr std::size_t kMaxIdBytes = 128;

// The largest number in a list such as `2(x3),1`: tasks or CPUs on each node.
std::optional<int> largest_of(std::string_view text) {
  std::int64_t largest = 0;
  while (!text.empty()) {
    const auto comma = std::min(text.find(','), text.size());
    const auto number = parse_count(text.substr(0, std::min(text.find('('), comma)));
    if (!number || *number > kMaxCount) return std::nullopt;
    largest = std::max(largest, *number);
    text.remove_prefix(std::min(comma + 1, text.size()));
  }
  if (largest == 0) return std::nullopt;
  return static_cast<int>(largest);
}

// Lines of a node file without blanks, each host once, in their order.
std::vector<std::string> hosts_of_lines(std::string_view text) {
  std::vector<std::string> hosts;
  std::set<std::string, std::less<>> seen;
  while (!text.empty() && hosts.size() < kMaxHosts) {
    const auto end = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, end);
    const auto first = line.find_first_not_of(" \t\r");
    if (first != std::string_view::npos) {
      const std::string host(line.substr(first, line.find_first_of(" \t\r", first) - first));
      if (seen.insert(host).second) hosts.push_back(host);
    }
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return hosts;
}

// Hosts of a list such as "h0 8 h1 8", each with its slots.
std::vector<std::string> hosts_of_pairs(std::string_view text) {
  std::string lines(text);
  bool is_host = true;
  for (std::size_t at = lines.find(' '); at != std::string::npos; at = lines.find(' ', at + 1)) {
    is_host = !is_host;
    if (is_host) lines[at] = '\n';
  }
  return hosts_of_lines(lines);
}

// A block of ports for each job. Slurm's jobs and steps count up, and so do their blocks. The steps
// of a job, and the jobs after it, have others.
std::uint16_t block_of(std::optional<std::int64_t> job, std::int64_t step, std::string_view id) {
  constexpr std::uint64_t kStepsApart = 37;
  const std::uint64_t number =
      job ? static_cast<std::uint64_t>(*job) * kStepsApart + static_cast<std::uint64_t>(step)
          : number_of_name(id);
  return job_port_of(number);
}

// A worker of ddprun or torchrun has inherited the variables of its launcher's scheduler.
bool is_worker(const EnvLookup& env) {
  return env("TORCHELASTIC_RUN_ID").has_value() || env("DDPRUN_JOB").has_value();
}

// One detection: the variables, and what is found in them.
class Detection {
 public:
  Detection(const EnvLookup& env, const SchedulerInputs& facts) : env_(env), facts_(facts) {}

  SchedulerFacts run() {
    for (const SchedulerRow& row : scheduler_table()) {
      if (!env_(row.sign) || !is_new(row) || !is_complete(row)) continue;
      found_.scheduler = row.scheduler;
      read(row);
      break;
    }
    if (found_.scheduler == Scheduler::kNone) return std::move(found_);
    read_job();
    read_operator();
    return std::move(found_);
  }

 private:
  std::string text(std::string_view name) const { return variable_text(env_, name); }
  std::optional<int> number(std::string_view name) const { return variable_number(env_, name); }

  void problem(std::string_view name, std::string_view expected) {
    if (found_.problem.empty())
      found_.problem = fmt::format("{}={}: expected {}", name, text(name), expected);
  }

  // A worker leaves out what it inherited from its launcher.
  bool is_new(const SchedulerRow& row) const {
    if (!is_worker(env_)) return true;
    if (!env_("DDPRUN_JOB")) return false;  // torchrun's worker has no mark
    const std::string then = env_(kStartMarkVariable).value_or("");
    return is_started_anew(then, start_mark(env_), row.scheduler);
  }

  // sbatch hands its own variables on to the batch script, those of a step too. The title of the
  // slurmstepd above us is not inherited. If none is seen (a container), the variables count.
  bool is_step_of_tasks() const {
    if (!facts_.slurm_step_above) return true;
    const std::string step = facts_.slurm_step_above();
    return !step.ends_with(".batch") && !step.ends_with(".interactive") &&
           !step.ends_with(".extern");
  }

  bool is_interactive() const {
    return env_(names::kSlurmPtyPort) && facts_.is_typed_at_terminal &&
           facts_.is_typed_at_terminal();
  }

  bool is_normal_step(const SchedulerRow& row) const {
    return parse_count(text(row.step)).value_or(kMaxNormalStep) < kMaxNormalStep &&
           is_step_of_tasks() && !is_interactive();
  }

  // With LOCAL_RANK it is a rank of another launcher that calls us. Its variables are not ours.
  bool is_ours_as_operator(const SchedulerRow& row) const {
    return number(row.nodes).value_or(0) > 1 && number(row.rank).has_value() && !env_("LOCAL_RANK");
  }

  // Returns whether a row's sign is not by chance that of something else.
  bool is_complete(const SchedulerRow& row) const {
    const Scheduler one = row.scheduler;
    if (one == Scheduler::kSlurmStep) return is_normal_step(row);
    // Flux sets these variables on HPE's machines, too.
    if (one == Scheduler::kPals) return env_(row.nodes) && !env_(names::kFlux.job);
    if (one == Scheduler::kMpich) return env_(row.nodes).has_value();
    if (one == Scheduler::kOperator) return is_ours_as_operator(row);
    return row.kind != SchedulerKind::kPlatform || is_on_platform(row, env_);
  }

  void read(const SchedulerRow& row) {
    const Scheduler one = row.scheduler;
    if (row.kind == SchedulerKind::kPlatform) return take_platform(row);
    if (one == Scheduler::kFluxInstance) return read_flux_instance();
    if (row.kind == SchedulerKind::kAllocation) return read_allocation(row);
    if (one == Scheduler::kSlurmStep) return read_slurm_step(row);
    if (row.kind == SchedulerKind::kLauncher) return read_processes(row);
    if (one == Scheduler::kIndexedJob) return read_indexed_job(row);
    if (one != Scheduler::kOperator) return;
    found_.nodes = number(row.nodes).value_or(1);
    found_.node_rank = number(row.rank).value_or(0);
    found_.first_host = text(row.hosts);
  }

  void take_platform(const SchedulerRow& row) {
    found_ = read_platform(row, env_, facts_);
    set_id(found_.id, std::nullopt, 0);
  }

  // Reads how many nodes a job has that starts no processes itself.
  void read_allocation(const SchedulerRow& row) {
    found_.nodes = std::max<int>(1, static_cast<int>(allocated_hosts().size()));
    if (const auto said = number(row.nodes)) found_.nodes = std::max(1, *said);
    found_.is_interactive_step = row.scheduler == Scheduler::kSlurmJob && is_interactive();
  }

  // The shell of `flux alloc` or the script of `flux batch`. Its variables say only where its
  // instance is, and Flux's own program how many nodes that has.
  void read_flux_instance() {
    const auto said =
        facts_.ask ? facts_.ask({"flux", "getattr", "size"}) : std::optional<std::string>();
    const auto nodes = parse_count(said ? said->substr(0, said->find_first_of(" \r\n")) : "");
    if (!nodes || *nodes < 1) {
      found_.problem = fmt::format(
          "{}={}: `flux getattr size` does not say how many nodes this Flux allocation has: put "
          "`flux` on PATH, or type --standalone for a job on this node alone",
          names::kFluxUri, text(names::kFluxUri));
      return;
    }
    found_.nodes = static_cast<int>(std::min<std::int64_t>(*nodes, kMaxCount));
  }

  void read_slurm_step(const SchedulerRow& row) {
    found_.is_step = true;
    read_nodes_and_rank(row);
    if (const auto tasks = largest_of(text(row.tasks))) {
      found_.most_tasks = *tasks;
    } else {
      problem(row.tasks, "a list of numbers");
    }
    const auto hosts = parse_host_list(text(row.hosts));
    if (!hosts) return problem(row.hosts, hosts.error().message());
    if (hosts->size() != static_cast<std::size_t>(found_.nodes))
      return problem(row.hosts, fmt::format("{} hosts", found_.nodes));
    found_.first_host = hosts->front();
    set_id(fmt::format("slurm-{}.{}", text(row.job), text(row.step)), parse_count(text(row.job)),
           parse_count(text(row.step)).value_or(0));
  }

  // A launcher of MPI counts processes. If each node has one, those are the nodes.
  void read_processes(const SchedulerRow& row) {
    found_.is_step = true;
    read_nodes_and_rank(row);
    found_.most_tasks = number(row.tasks).value_or(1);
    const std::vector<std::string> hosts = allocated_hosts();
    const auto named = env_("MASTER_ADDR");
    if (named && !named->empty()) {
      found_.first_host = *named;
    } else if (!hosts.empty()) {
      // The first host of an LSF job may be one that only starts programs; jsrun starts none there.
      const bool is_launch_node = row.scheduler == Scheduler::kJsrun &&
                                  hosts.size() > static_cast<std::size_t>(found_.nodes);
      found_.first_host = hosts[is_launch_node ? 1 : 0];
    }
    std::string job = text(row.job);
    for (const std::string_view other :
         {names::kSlurmJob.job, names::kPbs.job, names::kLsf.job, names::kCobalt.job})
      if (job.empty()) job = text(other);
    // Several jsruns may run at once in an allocation.
    if (const std::string step = text(row.step); !step.empty()) job += "." + step;
    set_id(fmt::format("mpi-{}", job.empty() ? found_.first_host : job), std::nullopt, 0);
  }

  void read_nodes_and_rank(const SchedulerRow& row) {
    const auto nodes = number(row.nodes);
    const auto rank = number(row.rank);
    if (!nodes || *nodes < 1) return problem(row.nodes, "a number above 0");
    found_.nodes = *nodes;
    if (!rank || *rank >= *nodes)
      return problem(row.rank, fmt::format("a number below {}={}", row.nodes, *nodes));
    found_.node_rank = *rank;
  }

  // A pod of an indexed Job is called JOB-INDEX, and with a headless Service it has a domain.
  void read_indexed_job(const SchedulerRow& row) {
    found_.is_step = true;
    found_.nodes = 0;
    const auto index = number(row.rank);
    if (!index) return problem(row.rank, "a number");
    found_.node_rank = *index;
    const std::string name = facts_.full_host_name ? facts_.full_host_name() : "";
    const auto dot = std::min(name.find('.'), name.size());
    const std::string host = name.substr(0, dot);
    const std::string ending = fmt::format("-{}", *index);
    if (!host.ends_with(ending)) return;
    const std::string job = host.substr(0, host.size() - ending.size());
    if (*index == 0 || dot < name.size()) found_.first_host = job + "-0" + name.substr(dot);
    set_id(fmt::format("job-{}", job), std::nullopt, 0);
  }

  // The hosts that a scheduler gave the whole job; none if it names none.
  std::vector<std::string> allocated_hosts() const {
    if (const auto list = env_(names::kSlurmJob.hosts)) {
      auto hosts = parse_host_list(*list);
      return hosts ? *std::move(hosts) : std::vector<std::string>();
    }
    for (const Scheduler scheduler :
         {Scheduler::kPbs, Scheduler::kLsf, Scheduler::kCobalt, Scheduler::kGridEngine}) {
      const auto path = env_(row_of(scheduler).hosts);
      if (!path || path->empty() || !facts_.read_file) continue;
      if (const auto lines = facts_.read_file(*path)) return hosts_of_lines(*lines);
    }
    return hosts_of_pairs(text(names::kLsfHostsAndSlots));
  }

  void set_id(std::string id, std::optional<std::int64_t> job, std::int64_t step) {
    // The log folder bears this name.
    std::replace(id.begin(), id.end(), '/', '_');
    id.resize(std::min(id.size(), kMaxIdBytes));
    found_.first_port = block_of(job, step, id);
    found_.id = std::move(id);
  }

  // Reads the facts that hold for the job, whoever started us in it.
  void read_job() {
    found_.job_nodes = std::max(1, number(names::kSlurmJob.nodes).value_or(1));
    if (!env_(names::kSlurmJob.job)) found_.job_nodes = static_cast<int>(allocated_hosts().size());
    found_.slurm_job = text(names::kSlurmJob.job);
    found_.in_pod = env_(row_of(Scheduler::kKubernetes).sign).has_value();
    if (found_.is_step || is_script_of_one_task())
      found_.cpus_per_task = number(names::kSlurmCpusPerTask).value_or(0);
    if (found_.scheduler == Scheduler::kSlurmStep || found_.scheduler == Scheduler::kSlurmJob)
      read_components();
    if (const auto end = parse_count(text(names::kSlurmJob.end_time)); end && *end > 0)
      found_.ends_at = std::chrono::sys_seconds(std::chrono::seconds(*end));
  }

  // The variables of a step are those of all components that it runs on. They have the number of
  // the first component's job. So it was seen with Slurm 22.05; where it is not so, ids would
  // differ.
  void read_components() {
    constexpr int kMostComponents = 128;  // slurm.h, MAX_HET_JOB_COMPS
    found_.het_components =
        std::clamp(number(names::kSlurmComponents).value_or(1), 1, kMostComponents);
    if (found_.het_components == 1) return;
    int nodes = 0;
    for (int i = 0; i < found_.het_components; ++i)
      nodes += number(fmt::format("{}_HET_GROUP_{}", names::kSlurmJob.nodes, i)).value_or(1);
    found_.job_nodes = nodes;
    if (!found_.is_step) found_.nodes = nodes;
    const std::string first = fmt::format("{}_HET_GROUP_0", names::kSlurmJob.job);
    if (found_.is_step && text(names::kSlurmJob.job) != text(first))
      problem(names::kSlurmJob.job,
              fmt::format("{}={} in a heterogeneous job", first, text(first)));
  }

  // The script of sbatch has the processors of all tasks of its node.
  bool is_script_of_one_task() const {
    if (found_.scheduler != Scheduler::kSlurmJob) return false;
    const auto on_a_node = largest_of(text(names::kSlurmTasksPerNode));
    return on_a_node.value_or(number(names::kSlurmTasks).value_or(0)) == 1;
  }

  // If a scheduler speaks too, these must not contradict it.
  void read_operator() {
    const SchedulerRow& row = row_of(Scheduler::kOperator);
    if (found_.scheduler == Scheduler::kOperator || !env_(row.sign) || !is_complete(row)) return;
    found_.by_operator = {number(row.nodes).value_or(1), number(row.rank).value_or(0),
                          text(row.hosts)};
  }

  const EnvLookup& env_;
  const SchedulerInputs& facts_;
  SchedulerFacts found_;
};

}  // namespace

SchedulerFacts detect_scheduler(const EnvLookup& env, const SchedulerInputs& facts) {
  return Detection(env, facts).run();
}

}  // namespace ddprun::launcher
