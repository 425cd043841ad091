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

// For `cpu`. torchrun counts those of the affinity mask. A scheduler may give a job a part of their
// time.
int workers_by_cpu(const ParseContext& context) {
  const SchedulerFacts& found = context.scheduler_facts;
  const bool is_scheduled = found.in_pod || (found.scheduler != Scheduler::kNone &&
                                             found.scheduler != Scheduler::kOperator);
  const auto& count = is_scheduled ? context.host.allowed_cpu_count : context.host.cpu_count;
  return std::clamp(count(), 1, kMaxWorkersPerNode);
}

// One worker for each visible device. With `auto` and no device, one for each CPU. Devices that
// are hidden are told of: their user expects a worker for each. Those that cannot be counted are
// never taken for CPUs.
int workers_by_devices(ParseContext& context, const std::string& word) {
  const auto found = workers_by_accelerator(context.host.accelerators(), word,
                                            context.given.is_on(FlagId::kVirtualLocalRank));
  if (found.workers > 0) return std::min(found.workers, kMaxWorkersPerNode);
  if (word == "auto" && found.is_uncounted) {
    context.fail(FlagId::kNprocPerNode, 1, found.why_none);
    return 1;
  }
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

// Takes the number of GPUs that a platform says, if it made one job of several nodes. A job of one
// node has torchrun's default.
std::optional<int> workers_by_platform(ParseContext& context) {
  const SchedulerFacts& found = context.scheduler_facts;
  if (!context.is_first_node || found.gpus == 0 || context.given.has(FlagId::kNprocPerNode))
    return std::nullopt;
  const int workers = std::min(found.gpus, kMaxWorkersPerNode);
  if (*context.is_first_node && workers > 1) {
    context.options.notices.push_back(
        fmt::format("{} says {} for each node, each with a worker; --nproc-per-node=N sets it",
                    row_of(found.scheduler).gpus, workers));
  }
  return workers;
}

int workers_per_node(ParseContext& context) {
  if (const auto workers = workers_by_platform(context)) return *workers;
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

// The words of a list that may have blanks around them.
std::vector<std::string> words_of(std::string_view list) {
  std::vector<std::string> words;
  for (std::size_t comma = 0; comma != std::string_view::npos;) {
    comma = list.find(',');
    words.push_back(without_blanks(list.substr(0, comma)));
    list.remove_prefix(comma == std::string_view::npos ? list.size() : comma + 1);
  }
  return words;
}

// The variables of --virtual-local-rank, and the one whose list is handed out. AMD's programs may
// read either of two. torchrun 2.15 looks at the HIP list first.
struct DeviceVariables {
  std::vector<std::string> all;
  std::string list;
};

DeviceVariables device_variables(const ParseContext& context, AcceleratorKind kind) {
  const std::string cuda(list_variable(AcceleratorKind::kNvidia));
  const std::string hip(list_variable(AcceleratorKind::kAmd));
  const std::string own(list_variable(kind));
  const bool has_hip = context.env(hip).has_value();
  if (kind == AcceleratorKind::kAmd) return {{cuda, hip}, has_hip ? hip : cuda};
  if (kind != AcceleratorKind::kNvidia) return {{own}, own};
  if (has_hip) return {{cuda, hip}, hip};
  return {{cuda}, cuda};
}

// Returns whether a selector of Intel's names devices by number. Beside a mask of one device these
// numbers would mean others.
bool selects_by_number(const std::string& selector) {
  return selector.find_first_of("0123456789") != std::string::npos;
}

// --virtual-local-rank: the one device that each worker sees, from the list that we were given.
// Without a list, worker k sees device k.
void read_virtual_devices(ParseContext& context) {
  if (!context.given.is_on(FlagId::kVirtualLocalRank)) return;
  const AcceleratorCount apart =
      accelerator_apart(context.host.accelerators(), context.given.text(FlagId::kNprocPerNode));
  const DeviceVariables variables = device_variables(context, apart.kind);
  const auto selector = context.env("ONEAPI_DEVICE_SELECTOR").value_or("");
  if (apart.kind == AcceleratorKind::kIntel && selects_by_number(selector)) {
    context.fail(1, "--virtual-local-rank",
                 fmt::format("ONEAPI_DEVICE_SELECTOR={} has numbers: unset it, and give the "
                             "devices by ZE_AFFINITY_MASK",
                             selector));
    return;
  }
  context.options.device_variables = variables.all;
  const auto list = context.env(variables.list);
  const std::vector<std::string> words = list ? words_of(*list) : apart.names;
  for (int rank = 0; rank < context.options.workers_per_node; ++rank) {
    const auto index = static_cast<std::size_t>(rank);
    if (index < words.size() || words.empty()) {
      context.options.virtual_devices.push_back(words.empty() ? std::to_string(rank)
                                                              : words[index]);
      continue;
    }
    const std::string shown = list ? fmt::format("{}={}", variables.list, *list)
                                   : fmt::format("a node with {}", counted(apart.here, apart.kind));
    context.fail(1, "--virtual-local-rank",
                 fmt::format("{} has no device for local rank {}", shown, rank));
    return;
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
