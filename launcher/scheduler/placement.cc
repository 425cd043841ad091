#include "launcher/scheduler/placement.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace ddprun::launcher {
namespace {

using MaybePlacement = std::optional<Placement>;

Error refusal(std::string message) { return {ErrorCode::kInvalidArgument, std::move(message)}; }

std::string counted(int count, std::string_view what) {
  return fmt::format("{} {}{}", count, what, count == 1 ? "" : "s");
}

// `srun --ntasks-per-node=1 --nodes=2 ddprun …`, or the line of the job's description.
std::string command_for(const SchedulerRow& row, int nodes, std::string_view called) {
  if (!row.setting.empty()) return fmt::format("{} in the job", row.setting);
  std::string command(row.command);
  constexpr std::string_view kNodes = "{nodes}";
  if (const auto at = command.find(kNodes); at != std::string::npos)
    command.replace(at, kNodes.size(), std::to_string(nodes));
  return fmt::format("`{} {} …`", command, called);
}

// Open MPI 4.1: its parameter odls_base_sigkill_timeout is 1.
constexpr std::string_view kMpirunKills =
    "; mpirun kills 1 s after it asks to end, `mpirun --mca odls_base_sigkill_timeout 30` leaves "
    "workers time to save";

constexpr std::string_view kOverlappingStep = "srun --overlap --ntasks-per-node=1 --nodes={nodes}";

constexpr std::string_view kOrAlone = "or --standalone for a job on this node alone";

// A step has one component of a heterogeneous job unless it is told (srun(1), --het-group).
std::string command_for_all(const SchedulerFacts& found, std::string_view called) {
  return fmt::format("`srun {}--het-group=0-{} --ntasks-per-node=1 {} …`",
                     found.is_interactive_step ? "--overlap " : "", found.het_components - 1,
                     called);
}

// Starts one on each node of the job.
std::string command_for_job(const SchedulerFacts& found, const SchedulerRow& row, int nodes,
                            std::string_view called) {
  return found.het_components > 1 ? command_for_all(found, called)
                                  : command_for(row, nodes, called);
}

// A job of several nodes, and ddprun on one of them.
Error on_one_node(const SchedulerFacts& found, int nodes, const PlacementQuery& asked) {
  const SchedulerRow& row = row_of(found.scheduler);
  const std::string command = command_for_job(found, row, nodes, asked.called);
  return refusal(fmt::format("this {} is of a job with {}, and {} runs on one of them: type {}, {}",
                             row.name, counted(nodes, "node"), asked.called, command, kOrAlone));
}

// LSF lists the host that its job's script runs on, and that may be one where no program can run.
Error lsf_job_on_one_node(const SchedulerFacts& found, const PlacementQuery& asked) {
  const SchedulerRow& row = row_of(found.scheduler);
  return refusal(fmt::format(
      "this {} has {}, of which the first may be there for its script alone, and {} runs "
      "on one of them: type {} with N hosts that run programs, {}",
      row.name, counted(found.nodes, "host"), asked.called,
      command_for(row, found.nodes, asked.called), kOrAlone));
}

Error job_on_one_node(const SchedulerFacts& found, const PlacementQuery& asked) {
  if (found.scheduler == Scheduler::kLsf) return lsf_job_on_one_node(found, asked);
  SchedulerRow row = row_of(found.scheduler);
  // The shell of `srun --pty` holds the processors that a new step would wait for.
  if (found.is_interactive_step) row.command = kOverlappingStep;
  const std::string command = command_for_job(found, row, found.nodes, asked.called);
  return refusal(fmt::format("this {} has {}, and {} runs on one of them: type {}, {}", row.name,
                             counted(found.nodes, "node"), asked.called, command, kOrAlone));
}

// A launcher that counts processes does not say on how many nodes they are.
int nodes_of_step(const SchedulerFacts& found) {
  if (!found.is_step || !found.problem.empty()) return 1;
  const bool counts_nodes = found.scheduler == Scheduler::kSlurmStep ||
                            row_of(found.scheduler).kind == SchedulerKind::kPlatform;
  return counts_nodes ? found.nodes : found.nodes / std::max(1, found.most_tasks);
}

// Each of them would be a launcher of its own.
Error several_on_a_node(const SchedulerFacts& found, const PlacementQuery& asked) {
  const SchedulerRow& row = row_of(found.scheduler);
  return refusal(fmt::format(
      "{} starts {} {}s on one node: type {}; --nproc-per-node=N starts N workers on each, and "
      "--standalone means jobs of their own",
      row.name, found.most_tasks, asked.called,
      command_for(row, std::max(1, nodes_of_step(found)), asked.called)));
}

Error other_count(const SchedulerFacts& found, const PlacementQuery& asked) {
  const SchedulerRow& row = row_of(found.scheduler);
  const std::string command =
      row.command.empty()
          ? std::string()
          : fmt::format("type {}, or ", command_for(row, asked.min_nodes, asked.called));
  return refusal(fmt::format(
      "{}: this {} has {}: {}leave --nnodes out; --nnodes=1 means a job on each node alone",
      asked.nodes_shown, row.name, counted(found.nodes, "node"), command));
}

Error no_first_host(const SchedulerFacts& found, const PlacementQuery& asked) {
  const SchedulerRow& row = row_of(found.scheduler);
  if (found.scheduler == Scheduler::kIndexedJob) {
    return refusal(
        "JOB_COMPLETION_INDEX: pod 0 has no name that others can look up: give the pods a "
        "`subdomain` with a headless Service of its name, or type --rdzv-backend=c10d "
        "--rdzv-endpoint=HOST");
  }
  const std::string way =
      row.hand_on.empty()
          ? fmt::format("--nnodes={} --rdzv-backend=c10d --rdzv-id=NAME --rdzv-endpoint=HOST",
                        found.nodes)
          : std::string(row.hand_on);
  return refusal(
      fmt::format("{} runs {} on {}, and nothing names the first host: type {} for the host of "
                  "rank 0, or --standalone for a job on each node alone",
                  row.name, asked.called, counted(found.nodes, "node"), way));
}

constexpr std::string_view kOperatorsFlags =
    "--nnodes=$WORLD_SIZE --node-rank=$RANK --master-addr=$MASTER_ADDR --master-port=$MASTER_PORT";

Error by_an_operator(const SchedulerFacts& found, const PlacementQuery& asked) {
  return refusal(fmt::format(
      "WORLD_SIZE={} and MASTER_ADDR={} are set, and {} takes nodes from its flags: type {}, {}",
      found.nodes, found.first_host, asked.called, kOperatorsFlags, kOrAlone));
}

Error against_an_operator(const SchedulerFacts& found, const OperatorWords& said,
                          const Placement& here) {
  return refusal(fmt::format(
      "WORLD_SIZE={} and RANK={} are set, and by this {} it is node {} of {}: type `unset "
      "WORLD_SIZE RANK` before it, or {}, {}",
      said.nodes, said.node_rank, row_of(found.scheduler).name, here.node_rank, here.nodes,
      kOperatorsFlags, kOrAlone));
}

// Without --nnodes the flags mean one node, as with torchrun: each would train alone.
Error one_node_of_several(const SchedulerFacts& found, int nodes, const PlacementQuery& asked) {
  return refusal(fmt::format(
      "{} without --nnodes is a job of 1 node, and this {} has {}: type --nnodes={} beside it, or "
      "no flag that says how nodes meet; --standalone means a job on each node alone",
      asked.flag_shown, row_of(found.scheduler).name, counted(nodes, "node"), nodes));
}

bool fits(const SchedulerFacts& found, const PlacementQuery& asked) {
  return asked.max_nodes == 0 || (asked.min_nodes <= found.nodes && found.nodes <= asked.max_nodes);
}

// An allocation says where a step may run, and not where nodes meet: they would never find this
// one.
Error elastic_without_a_step(const SchedulerFacts& found, const PlacementQuery& asked) {
  const SchedulerRow& row = row_of(found.scheduler);
  return refusal(fmt::format(
      "{}: this {} has {}, and it says of a step alone where nodes meet: type {}, or leave "
      "--nnodes "
      "out, or give --rdzv-backend=c10d --rdzv-endpoint=HOST:PORT beside it",
      asked.nodes_shown, row.name, counted(found.nodes, "node"),
      command_for(row, found.nodes, asked.called)));
}

// Places a job in an allocation: several hosts, with ddprun on one of them.
Result<MaybePlacement> place_in_job(const SchedulerFacts& found, const PlacementQuery& asked) {
  if (found.nodes > 1) return job_on_one_node(found, asked);
  if (!fits(found, asked)) return other_count(found, asked);
  if (asked.max_nodes > 1) return elastic_without_a_step(found, asked);
  return MaybePlacement();
}

// Pod 0 cannot know whether there are others. Those that have a higher index do.
Result<MaybePlacement> pod_without_a_number(const SchedulerFacts& found,
                                            const PlacementQuery& asked) {
  // If somebody else says it, that is what counts.
  if (found.node_rank == 0 || found.by_operator) return MaybePlacement();
  return refusal(
      fmt::format("this pod is JOB_COMPLETION_INDEX={}, and nothing says whether {} is one job of "
                  "all pods: type --nnodes=N with the Job's number of completions, or --standalone "
                  "for a job on each pod alone",
                  found.node_rank, asked.called));
}

// The pods of an indexed Job may have nothing to do with each other. Only --nnodes says that they
// are one job, and of how many nodes.
Result<MaybePlacement> place_pod(const SchedulerFacts& found, const PlacementQuery& asked) {
  if (asked.max_nodes == 0) return pod_without_a_number(found, asked);
  if (found.node_rank >= asked.max_nodes) {
    return refusal(
        fmt::format("{}: this pod is JOB_COMPLETION_INDEX={}: type --nnodes=N with the "
                    "Job's number of completions",
                    asked.nodes_shown, found.node_rank));
  }
  if (found.first_host.empty()) return no_first_host(found, asked);
  return MaybePlacement({.nodes = asked.max_nodes,
                         .node_rank = found.node_rank,
                         .host = found.first_host,
                         .first_port = found.first_port,
                         .id = found.id});
}

// A launcher counts a jsrun job's launch node among the hosts, where nothing can run.
int hosts_that_run(const SchedulerFacts& found) {
  return found.job_nodes - (found.scheduler == Scheduler::kJsrun ? 1 : 0);
}

Result<MaybePlacement> place_in_step(const SchedulerFacts& found, const PlacementQuery& asked) {
  if (found.most_tasks > 1) return several_on_a_node(found, asked);
  if (!fits(found, asked)) return other_count(found, asked);
  if (found.nodes == 1 && hosts_that_run(found) > 1)
    return on_one_node(found, hosts_that_run(found), asked);
  // MIN:MAX needs a rendezvous, also where one node is there at the start.
  if (found.nodes == 1 && asked.max_nodes == 0) return MaybePlacement();
  if (found.first_host.empty()) return no_first_host(found, asked);
  return MaybePlacement({.nodes = found.nodes,
                         .node_rank = found.node_rank,
                         .host = found.first_host,
                         .first_port = found.first_port,
                         .id = found.id});
}

Result<MaybePlacement> place_anywhere(const SchedulerFacts& found, const PlacementQuery& asked) {
  if (found.scheduler == Scheduler::kNone) return MaybePlacement();
  if (found.scheduler == Scheduler::kIndexedJob) return place_pod(found, asked);
  switch (row_of(found.scheduler).kind) {
    case SchedulerKind::kLauncher:
    case SchedulerKind::kPlatform:
      return place_in_step(found, asked);
    case SchedulerKind::kAllocation:
      return place_in_job(found, asked);
    case SchedulerKind::kVariables:
      return by_an_operator(found, asked);
    case SchedulerKind::kPod:
      break;
  }
  return MaybePlacement();
}

// A line of torchrun does what it did, unless it would split a step into jobs of one node.
Result<MaybePlacement> place_by_flags(const SchedulerFacts& found, const PlacementQuery& asked) {
  const int nodes = nodes_of_step(found);
  if (asked.max_nodes == 0 && nodes > 1) return one_node_of_several(found, nodes, asked);
  return MaybePlacement();
}

Result<MaybePlacement> place_as_said(const SchedulerFacts& found, const PlacementQuery& asked) {
  if (!found.problem.empty()) return refusal(found.problem);
  auto placed = place_anywhere(found, asked);
  if (!placed || !found.by_operator) return placed;
  const Placement here = placed->value_or(Placement{});
  if (found.by_operator->nodes == here.nodes && found.by_operator->node_rank == here.node_rank)
    return placed;
  return against_an_operator(found, *found.by_operator, here);
}

}  // namespace

Result<std::optional<Placement>> place(const SchedulerFacts& scheduler_facts,
                                       const PlacementQuery& asked) {
  // One node that is asked for by name is one node, whoever started us.
  if (asked.is_alone || asked.max_nodes == 1) return MaybePlacement();
  if (asked.by_flags) return place_by_flags(scheduler_facts, asked);
  auto placed = place_as_said(scheduler_facts, asked);
  if (placed && *placed) {
    Placement& placement = **placed;
    placement.notice = fmt::format(
        "{} {}: {}, meeting at {}:{}", row_of(scheduler_facts.scheduler).name, placement.id,
        counted(placement.nodes, "node"), placement.host, placement.first_port);
    if (scheduler_facts.scheduler == Scheduler::kOpenMpi) placement.notice += kMpirunKills;
  }
  return placed;
}

}  // namespace ddprun::launcher
