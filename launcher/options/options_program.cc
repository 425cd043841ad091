// Reads the program: SCRIPT and its mode, how many workers, which devices and CPUs they see.
#include <fmt/format.h>

#include <algorithm>

#include "launcher/options/parse_context.h"

namespace ddprun::launcher {
namespace {

// At most two of the three can be given, --run-path and --no-python. --run-path then wins, as in
// torchrun. torchrun also takes --module with --run-path and forgets --module; here that is an
// error.
void read_mode(ParseContext& context) {
  const bool module = context.given.is_on(FlagId::kModule);
  const bool program = context.given.is_on(FlagId::kNoPython);
  Mode& mode = context.options.mode;
  if (context.given.is_on(FlagId::kRunPath)) {
    if (module) context.fail(FlagId::kRunPath, 1, "expected no --module beside it");
    mode = Mode::kRunPath;
  } else if (program) {
    if (module) context.fail(FlagId::kNoPython, 1, "expected no --module beside it");
    mode = Mode::kProgram;
  } else if (module) {
    mode = Mode::kModule;
  }
}

// Does as torch.distributed.launch; --local-rank or the program's name asks for it.
void read_local_rank_argument(ParseContext& context) {
  const bool asked = context.host.called == kLaunchName || context.given.is_on(FlagId::kLocalRank);
  if (context.host.called == kLaunchName) {
    context.warn(
        "ddprun-launch is for scripts that want --local-rank; read LOCAL_RANK and use ddprun");
  }
  if (!asked || context.given.is_on(FlagId::kUseEnv)) return;
  if (context.given.is_on(FlagId::kNoPython))
    context.fail(FlagId::kNoPython, 1,
                 "expected --use-env beside it: programs are given no --local-rank");
  context.options.local_rank_argument = true;
}

// The value has no effect: workers are always fresh processes. argparse checks it on the command
// line only, so the variable brings no more than a warning.
void read_start_method(ParseContext& context) {
  const auto found = context.given.flags.find(FlagId::kStartMethod);
  if (found == context.given.flags.end() || !found->second.from_environment) {
    context.choice(FlagId::kStartMethod, 2);
  } else {
    context.warn_without_effect(FlagId::kStartMethod, "on workers");
  }
}

// For `cpu`. torchrun counts the machine's. A scheduler gives a job a part of them.
int workers_by_cpu(const ParseContext& context) {
  const SchedulerFacts& found = context.scheduler_facts;
  const bool is_scheduled = found.in_pod || (found.scheduler != Scheduler::kNone &&
                                             found.scheduler != Scheduler::kOperator);
  const auto& count = is_scheduled ? context.host.allowed_cpu_count : context.host.cpu_count;
  return std::clamp(count(), 1, kMaxWorkersPerNode);
}

// One worker for each visible device. With `auto` and no device, one for each CPU. Device files
// that are there and do not count are told of: their user expects a worker for each.
int workers_by_devices(ParseContext& context, const std::string& word) {
  const auto found = workers_by_accelerator(context.host.accelerators(), word,
                                            context.given.is_on(FlagId::kVirtualLocalRank));
  if (found.workers > 0) return std::min(found.workers, kMaxWorkersPerNode);
  if (word == "auto") {
    if (!found.why_none.empty())
      context.warn(fmt::format("--nproc-per-node=auto counts the CPUs: {}", found.why_none));
    return workers_by_cpu(context);
  }
  context.fail(FlagId::kNprocPerNode, 1,
               fmt::format("no {} is visible on this node{}{}", sought_by(word),
                           found.why_none.empty() ? "" : ": ", found.why_none));
  return 1;
}

int workers_per_node(ParseContext& context) {
  const std::string text = context.given.text(FlagId::kNprocPerNode);
  if (text == "cpu") return workers_by_cpu(context);
  if (is_accelerator_word(text)) return workers_by_devices(context, text);
  const auto count = parse_int(text);
  if (!count || *count <= 0) {
    context.fail(FlagId::kNprocPerNode, 1,
                 "expected a number above 0, cpu, gpu, auto, xpu, npu or hpu");
    return 1;
  }
  if (*count > kMaxWorkersPerNode) {
    context.fail(FlagId::kNprocPerNode, 1,
                 fmt::format("expected at most {} workers", kMaxWorkersPerNode));
    return 1;
  }
  return *count;
}

// The list may have blanks around its entries.
std::string without_blanks(std::string_view text) {
  const auto first = text.find_first_not_of(' ');
  if (first == std::string_view::npos) return {};
  return std::string(text.substr(first, text.find_last_not_of(' ') - first + 1));
}

// --virtual-local-rank: the one device that each worker sees, from the list that we were given.
// Without a list, worker k sees device k. torchrun 2.15 looks at the HIP list first.
void read_virtual_devices(ParseContext& context) {
  if (!context.given.is_on(FlagId::kVirtualLocalRank)) return;
  const char* variable =
      context.env("HIP_VISIBLE_DEVICES") ? "HIP_VISIBLE_DEVICES" : "CUDA_VISIBLE_DEVICES";
  const auto list = context.env(variable);
  const std::string text = list.value_or("");
  std::string_view rest = text;
  bool more = true;
  for (int rank = 0; rank < context.options.workers_per_node; ++rank) {
    if (!list) {
      context.options.virtual_devices.push_back(std::to_string(rank));
      continue;
    }
    if (!more) {
      context.fail(1, "--virtual-local-rank",
                   fmt::format("{}={} has no device for local rank {}", variable, *list, rank));
      return;
    }
    const auto comma = std::min(rest.find(','), rest.size());
    context.options.virtual_devices.push_back(without_blanks(rest.substr(0, comma)));
    more = comma < rest.size();
    rest.remove_prefix(std::min(comma + 1, rest.size()));
  }
}

}  // namespace

void read_program(ParseContext& context) {
  if (!context.given.has_script) {
    context.fail(
        2, "SCRIPT is missing",
        fmt::format("usage: {0} [options] SCRIPT [script arguments…]; {0} --help lists the "
                    "options",
                    context.host.called));
  }
  Options& options = context.options;
  options.script = context.given.script;
  options.script_args = context.given.script_args;
  read_mode(context);
  read_local_rank_argument(context);
  read_start_method(context);
  options.check = context.given.is_on(FlagId::kCheck);
  options.workers_per_node = workers_per_node(context);
  options.role = context.given.text(FlagId::kRole);
  read_virtual_devices(context);
  if (context.given.has(FlagId::kNumaBinding))
    options.numa_binding = parse_numa_mode(context.choice(FlagId::kNumaBinding, 2));
}

}  // namespace ddprun::launcher
