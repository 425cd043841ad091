#include "launcher/doctor/judge_devices.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "base/numbers.h"
#include "launcher/doctor/judge_peer_access.h"
#include "launcher/doctor/nccl_words.h"

namespace ddprun::launcher {
namespace {

std::vector<std::string> words_of(std::string_view list) {
  std::vector<std::string> words;
  while (!list.empty()) {
    const auto comma = std::min(list.find(','), list.size());
    if (comma > 0) words.emplace_back(list.substr(0, comma));
    list.remove_prefix(std::min(comma + 1, list.size()));
  }
  return words;
}

std::string joined(const std::vector<std::string>& words) {
  return words.empty() ? "none" : fmt::format("{}", fmt::join(words, ", "));
}

// NCCL's lists (NCCL user guide, NCCL_SOCKET_IFNAME): `^` in front names interfaces not to be
// taken. `=` means whole names and not beginnings. A device of InfiniBand may have a `:port`. It
// takes any of them, so one line can be for all hosts of a cluster.
std::vector<std::string> missing_of_nccl(std::string_view list,
                                         const std::vector<std::string>& there) {
  if (list.starts_with('^')) return {};
  const bool is_exact = list.starts_with('=');
  if (is_exact) list.remove_prefix(1);
  std::vector<std::string> missing;
  for (const std::string& word : words_of(list)) {
    const std::string name = word.substr(0, word.find(':'));
    const bool is_there = std::any_of(there.begin(), there.end(), [&](const std::string& one) {
      return is_exact ? one == name : one.starts_with(name);
    });
    if (!is_there) missing.push_back(word);
  }
  return missing;
}

// Gloo takes each of them.
std::vector<std::string> missing_of_gloo(std::string_view list,
                                         const std::vector<std::string>& there) {
  std::vector<std::string> missing = words_of(list);
  std::erase_if(missing, [&](const std::string& word) {
    return std::find(there.begin(), there.end(), word) != there.end();
  });
  return missing;
}

std::size_t words_of_nccl(std::string_view list) {
  return words_of(list.substr(list.starts_with('=') ? 1 : 0)).size();
}

// Interfaces that are named and there, of which none is up.
void judge_up(const char* name, std::string_view list, const NodeFacts& facts, Findings& found) {
  if (list.empty() || list.starts_with('^')) return;
  const auto missing = missing_of_nccl(list, facts.interfaces);
  auto down = missing_of_nccl(list, facts.interfaces_up);
  if (down.size() < words_of_nccl(list)) return;
  std::erase_if(down, [&](const std::string& word) {
    return std::find(missing.begin(), missing.end(), word) != missing.end();
  });
  if (down.empty()) return;
  found.push_back({Level::kWarning, name, fmt::format("{} is down", joined(down)),
                   fmt::format("`ip link set dev IFACE up`, or `unset {}`", name)});
}

// "[N/A]" is 0.
int count_of(std::string_view text) { return leading_number<int>(text).value_or(0); }

void judge_gpu(const GpuRow& gpu, Findings& found) {
  const std::string what = "GPU " + gpu.index;
  const auto is_yes = [](std::string_view text) { return text == "Yes" || text == "1"; };
  if (is_yes(gpu.remap_failed)) {
    found.push_back({Level::kFailure, what,
                     gpu.name + ": rows of its memory cannot be remapped any more",
                     "drain the node (`ddpctl drain`) and have the card replaced"});
  } else if (is_yes(gpu.remap_pending)) {
    found.push_back(
        {Level::kWarning, what, gpu.name + ": rows of its memory wait to be remapped",
         fmt::format("`nvidia-smi --gpu-reset -i {}` when nothing uses it", gpu.index)});
  } else if (count_of(gpu.ecc_errors) > 0) {
    found.push_back(
        {Level::kFailure, what,
         fmt::format("{}: {} uncorrected memory errors since the driver was loaded", gpu.name,
                     gpu.ecc_errors),
         fmt::format("`nvidia-smi --gpu-reset -i {}` when nothing uses it", gpu.index)});
  } else if (gpu.persistence == "Disabled") {
    found.push_back(
        {Level::kWarning, what,
         gpu.name + ": persistence mode is off, so each start loads the driver's state anew",
         "`nvidia-smi -pm 1`"});
  } else {
    found.push_back({Level::kOk, what, fmt::format("{}, driver {}", gpu.name, gpu.driver)});
  }
}

void judge_answers(const NodeQuestion& question, const GpuFacts& gpus, Findings& found) {
  for (const GpuRow& gpu : gpus.rows) judge_gpu(gpu, found);
  if (!gpus.has_query)
    found.push_back(
        {Level::kWarning, "GPUs", "nvidia-smi gives no answer", "run `nvidia-smi` by hand"});
  if (!gpus.xids.empty())
    found.push_back({Level::kWarning, "GPUs", "the kernel's log has " + gpus.xids.back(),
                     "`dmesg | grep Xid`, and look the number up in NVIDIA's list of Xid errors"});
  if (question.workers <= question.gpus) return;
  const std::string count = question.gpus < gpus.listed
                                ? fmt::format("{} of {}", question.gpus, gpus.listed)
                                : std::to_string(question.gpus);
  found.push_back({Level::kWarning, "GPUs",
                   fmt::format("{} for {} workers", count, question.workers),
                   fmt::format("`--nproc-per-node={}`", question.gpus)});
}

// A kind that has no query program here: what the launcher counts of it.
void judge_other(const NodeQuestion& question, const AcceleratorCount& one, Findings& found) {
  const std::string what(plural_of(one.kind));
  if (one.is_integrated && one.visible > 0) {
    found.push_back({Level::kOk, what, fmt::format("{}, integrated", one.visible)});
  } else if (one.kind == AcceleratorKind::kUncounted) {
    found.push_back({Level::kOk, what, one.why_none});
  } else if (one.visible == 0) {
    found.push_back({Level::kWarning, what, one.why_none,
                     "unset that variable, or let this user open the file; fine for a job "
                     "without them"});
  } else if (question.workers > one.visible) {
    const std::string count = one.visible < one.here
                                  ? fmt::format("{} of {}", one.visible, one.here)
                                  : std::to_string(one.visible);
    found.push_back({Level::kWarning, what,
                     fmt::format("{} for {} workers", count, question.workers),
                     fmt::format("`--nproc-per-node={}`", one.visible)});
  } else {
    found.push_back({Level::kOk, what, std::to_string(one.visible)});
  }
}

void judge_nvidia(const NodeQuestion& question, const NodeFacts& facts, Findings& found) {
  if (!facts.gpus) {
    found.push_back({Level::kWarning, "GPUs", "the driver does not answer in time",
                     "run `nvidia-smi` by hand"});
    return;
  }
  const GpuFacts& gpus = *facts.gpus;
  const int here = std::max(gpus.listed, question.gpus);
  if (here == 0) return;
  if (question.gpus == 0) {
    found.push_back({Level::kWarning, "GPUs",
                     fmt::format("{} here, and CUDA_VISIBLE_DEVICES hides all of them", here),
                     "`unset CUDA_VISIBLE_DEVICES`, or ask the scheduler for them: "
                     "`srun --gpus-per-node=…`; fine for a job without GPUs"});
    return;
  }
  if (!gpus.can_open) {
    found.push_back({Level::kFailure, "GPUs",
                     fmt::format("{} on this host, and /dev/nvidiactl cannot be opened", here),
                     "`docker run --gpus all …`, or in a pod resources.limits nvidia.com/gpu"});
    return;
  }
  judge_answers(question, gpus, found);
  if (facts.python && !facts.python->torch.empty() && facts.python->cuda.empty())
    found.push_back({Level::kWarning, "GPUs",
                     fmt::format("torch {} is built without CUDA", facts.python->torch),
                     "`pip install torch` from an index with CUDA"});
}

}  // namespace

void judge_gpus(const NodeQuestion& question, const NodeFacts& facts, Findings& found) {
  const std::size_t before = found.size();
  judge_nvidia(question, facts, found);
  judge_peer_access(question, facts, found);
  for (const AcceleratorCount& one : question.others) judge_other(question, one, found);
  if (found.size() == before) found.push_back({Level::kOk, "GPUs", "none"});
}

namespace {

// Variables that switch a fast way off.
void judge_switches(const NodeQuestion& question, const NodeFacts& facts, Findings& found) {
  if (is_set(value_of(question, "NCCL_IB_DISABLE")) && !facts.infiniband.empty())
    found.push_back({Level::kWarning, "NCCL_IB_DISABLE",
                     fmt::format("switches off {}, which is there", joined(facts.infiniband)),
                     "`unset NCCL_IB_DISABLE`"});
  if (is_word(value_of(question, "NCCL_NET"), "Socket") && !facts.infiniband.empty())
    found.push_back({Level::kWarning, "NCCL_NET",
                     fmt::format("Socket leaves {} unused", joined(facts.infiniband)),
                     "`unset NCCL_NET`"});
  judge_peer_variables(question, facts, found);
}

}  // namespace

void judge_variables(const NodeQuestion& question, const NodeFacts& facts, Findings& found) {
  const std::size_t before = found.size();
  const auto names = [&](Level level, const char* name, const std::vector<std::string>& missing,
                         const std::vector<std::string>& there, const char* kind) {
    if (missing.empty()) return;
    found.push_back(
        {level, name,
         fmt::format("{} names no {} here; there are {}", joined(missing), kind, joined(there)),
         fmt::format("`unset {}`, or name one of them", name)});
  };
  const auto nccl = [&](const char* name, const std::vector<std::string>& there, const char* kind) {
    const std::string_view list = value_of(question, name);
    const auto missing = missing_of_nccl(list, there);
    const bool has_one = missing.size() < words_of_nccl(list);
    names(has_one ? Level::kWarning : Level::kFailure, name, missing, there, kind);
  };
  judge_up("NCCL_SOCKET_IFNAME", value_of(question, "NCCL_SOCKET_IFNAME"), facts, found);
  nccl("NCCL_SOCKET_IFNAME", facts.interfaces, "interface");
  names(Level::kFailure, "GLOO_SOCKET_IFNAME",
        missing_of_gloo(value_of(question, "GLOO_SOCKET_IFNAME"), facts.interfaces),
        facts.interfaces, "interface");
  nccl("NCCL_IB_HCA", facts.infiniband, "InfiniBand device");
  judge_switches(question, facts, found);
  if (found.size() == before && !question.variables.empty())
    found.push_back({Level::kOk, "NCCL and Gloo",
                     fmt::format("{} set, none in the way",
                                 question.variables.size() == 1
                                     ? std::string("1 variable")
                                     : fmt::format("{} variables", question.variables.size()))});
}

}  // namespace ddprun::launcher
