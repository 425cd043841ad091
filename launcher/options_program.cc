// What runs: SCRIPT and its mode, how many workers, which devices and CPUs they see.
#include <fmt/format.h>

#include <algorithm>

#include "launcher/reading.h"

namespace ddprun::launcher {
namespace {

// Only --run-path and --no-python can stand side by side, as in torchrun, and the first wins.
void read_mode(Reading& reading) {
  const bool module = reading.given.is_on(FlagId::kModule);
  const bool program = reading.given.is_on(FlagId::kNoPython);
  Mode& mode = reading.options.mode;
  if (reading.given.is_on(FlagId::kRunPath)) {
    // With a module it would run something else than asked for.
    if (module) reading.fail(FlagId::kRunPath, 1, "expected no --module beside it");
    mode = Mode::kRunPath;
  } else if (program) {
    if (module) reading.fail(FlagId::kNoPython, 1, "expected no --module beside it");
    mode = Mode::kProgram;
  } else if (module) {
    mode = Mode::kModule;
  }
}

// torch.distributed.launch's habit: asked for by --local-rank or by the program's name.
void read_local_rank_argument(Reading& reading) {
  const bool asked = reading.host.called_as_launch || reading.given.is_on(FlagId::kLocalRank);
  if (reading.host.called_as_launch) {
    reading.warn(
        "ddprun-launch is for scripts that want --local-rank; read LOCAL_RANK and use ddprun");
  }
  if (!asked || reading.given.is_on(FlagId::kUseEnv)) return;
  if (reading.given.is_on(FlagId::kNoPython))
    reading.fail(FlagId::kNoPython, 1,
                 "expected --use-env beside it: programs are given no --local-rank");
  reading.options.local_rank_argument = true;
}

// It has no effect here: workers are always fresh processes. argparse checks it on the command
// line only.
void read_start_method(Reading& reading) {
  const auto found = reading.given.flags.find(FlagId::kStartMethod);
  if (found == reading.given.flags.end() || !found->second.from_environment) {
    reading.choice(FlagId::kStartMethod, 2);
  } else {
    reading.warn_without_effect(FlagId::kStartMethod, "on workers");
  }
}

int workers_by_gpu(Reading& reading, bool or_cpus) {
  const int gpus = reading.host.gpu_count();
  if (gpus > 0) return gpus;
  if (or_cpus) return std::clamp(reading.host.cpu_count(), 1, kMaxWorkersPerNode);
  reading.fail(FlagId::kNprocPerNode, 1, "no GPU is visible on this node");
  return 1;
}

int workers_per_node(Reading& reading) {
  const std::string text = reading.given.text(FlagId::kNprocPerNode);
  if (text == "cpu") return std::clamp(reading.host.cpu_count(), 1, kMaxWorkersPerNode);
  if (text == "gpu" || text == "auto") return workers_by_gpu(reading, text == "auto");
  const auto count = parse_int(text);
  if (!count || *count <= 0) {
    reading.fail(FlagId::kNprocPerNode, 1, "expected a number above 0, cpu, gpu or auto");
    return 1;
  }
  if (*count > kMaxWorkersPerNode) {
    reading.fail(FlagId::kNprocPerNode, 1,
                 fmt::format("expected at most {} workers", kMaxWorkersPerNode));
    return 1;
  }
  return *count;
}

std::string without_blanks(std::string_view text) {
  const auto first = text.find_first_not_of(' ');
  if (first == std::string_view::npos) return {};
  return std::string(text.substr(first, text.find_last_not_of(' ') - first + 1));
}

// --virtual-local-rank: the device of each worker, from the list this process was given. torchrun
// 2.15 looks at the HIP list first.
void read_virtual_devices(Reading& reading) {
  if (!reading.given.is_on(FlagId::kVirtualLocalRank)) return;
  const char* variable =
      reading.env("HIP_VISIBLE_DEVICES") ? "HIP_VISIBLE_DEVICES" : "CUDA_VISIBLE_DEVICES";
  const auto list = reading.env(variable);
  const std::string text = list.value_or("");
  std::string_view rest = text;
  bool more = true;
  for (int rank = 0; rank < reading.options.workers_per_node; ++rank) {
    if (!list) {
      reading.options.virtual_devices.push_back(std::to_string(rank));
      continue;
    }
    if (!more) {
      reading.fail(1, "--virtual-local-rank",
                   fmt::format("{}={} has no device for local rank {}", variable, *list, rank));
      return;
    }
    const auto comma = std::min(rest.find(','), rest.size());
    reading.options.virtual_devices.push_back(without_blanks(rest.substr(0, comma)));
    more = comma < rest.size();
    rest.remove_prefix(std::min(comma + 1, rest.size()));
  }
}

}  // namespace

void read_program(Reading& reading) {
  if (!reading.given.has_script) {
    reading.fail(2, "SCRIPT is missing",
                 "usage: ddprun [options] SCRIPT [script arguments…]; ddprun --help lists the "
                 "options");
  }
  Options& options = reading.options;
  options.script = reading.given.script;
  options.script_args = reading.given.script_args;
  read_mode(reading);
  read_local_rank_argument(reading);
  read_start_method(reading);
  options.workers_per_node = workers_per_node(reading);
  options.role = reading.given.text(FlagId::kRole);
  read_virtual_devices(reading);
  if (reading.given.has(FlagId::kNumaBinding))
    options.numa_binding = parse_numa_mode(reading.choice(FlagId::kNumaBinding, 2));
}

}  // namespace ddprun::launcher
