#include "launcher/options/numa.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "base/allowed_cpus.h"
#include "launcher/options/flag_values.h"

namespace ddprun::launcher {
namespace {

using Cpus = std::vector<int>;

Error cannot(std::string why) { return {ErrorCode::kNotFound, std::move(why)}; }

template <typename Wanted>
std::vector<Cpu> cpus_where(const NumaFacts& facts, Wanted wanted) {
  std::vector<Cpu> found;
  std::copy_if(facts.cpus.begin(), facts.cpus.end(), std::back_inserter(found), wanted);
  return found;
}

std::vector<Cpu> cpus_of_node(const NumaFacts& facts, int node) {
  return cpus_where(facts, [node](const Cpu& cpu) { return cpu.node == node; });
}

Cpus numbers(const std::vector<Cpu>& cpus) {
  Cpus result;
  for (const Cpu& cpu : cpus) result.push_back(cpu.number);
  return result;
}

// Groups CPUs by the lowest CPU that shares their core or cache. The map puts the groups in order
// of that number, as torch does. So all workers divide a node in the same way.
std::map<int, Cpus> grouped(const std::vector<Cpu>& cpus, int Cpu::*sharer) {
  std::map<int, Cpus> groups;
  for (const Cpu& cpu : cpus) groups[cpu.*sharer].push_back(cpu.number);
  return groups;
}

// A NUMA node belongs to the processor of its lowest CPU, as with torch. Nodes without a CPU for us
// do not occur in facts.cpus.
Cpus socket_cpus(const NumaFacts& facts, int node) {
  const int package = cpus_of_node(facts, node).front().package;
  return numbers(cpus_where(facts, [&](const Cpu& cpu) {
    return cpus_of_node(facts, cpu.node).front().package == package;
  }));
}

// The place of a GPU among the GPUs of its NUMA node.
struct Share {
  int node = 0;
  int index = 0;
  int count = 0;
};

// Counts all visible GPUs, also those without a worker: torch divides a node's cores in that way.
Share share_of(const NumaFacts& facts, int gpu) {
  Share share{facts.gpu_nodes[static_cast<std::size_t>(gpu)], 0, 0};
  for (int other = 0; other < std::ssize(facts.gpu_nodes); ++other) {
    if (facts.gpu_nodes[static_cast<std::size_t>(other)] != share.node) continue;
    if (other < gpu) ++share.index;
    ++share.count;
  }
  return share;
}

// Whole cores: two workers must not meet on the siblings of one core. Cores that are left over
// after the division go to the first GPUs, one core each.
Result<Cpus> exclusive_cpus(const NumaFacts& facts, const Share& share) {
  const auto cores = grouped(cpus_of_node(facts, share.node), &Cpu::core);
  const int core_count = static_cast<int>(cores.size());
  const int each = core_count / share.count;
  const int surplus = core_count % share.count;
  if (each < 1) {
    return cannot(
        fmt::format("NUMA node {} has {} cores for {} GPUs", share.node, core_count, share.count));
  }
  const int from = share.index * each + std::min(share.index, surplus);
  const int to = from + each + (share.index < surplus ? 1 : 0);
  Cpus cpus;
  int at = 0;
  for (const auto& [core, siblings] : cores) {
    if (at >= from && at < to) cpus.insert(cpus.end(), siblings.begin(), siblings.end());
    ++at;
  }
  std::sort(cpus.begin(), cpus.end());
  return cpus;
}

// The largest group goes to the first GPU. With more GPUs than groups it begins again at the first.
Cpus core_complex_cpus(const NumaFacts& facts, const Share& share) {
  std::vector<Cpus> complexes;
  for (auto& [cache, cpus] : grouped(cpus_of_node(facts, share.node), &Cpu::cache))
    complexes.push_back(cpus);
  std::stable_sort(complexes.begin(), complexes.end(),
                   [](const Cpus& a, const Cpus& b) { return a.size() > b.size(); });
  return complexes[static_cast<std::size_t>(share.index) % complexes.size()];
}

Result<Cpus> cpus_of_worker(NumaMode mode, const NumaFacts& facts, int gpu) {
  const Share share = share_of(facts, gpu);
  // A cgroup or taskset may leave us no CPU there. An empty list would make numactl fail in each
  // worker.
  if (cpus_of_node(facts, share.node).empty()) {
    return cannot(
        fmt::format("no CPU of NUMA node {}, GPU {}'s, may be used here", share.node, gpu));
  }
  switch (mode) {
    case NumaMode::kNode:
      return numbers(cpus_of_node(facts, share.node));
    case NumaMode::kSocket:
      return socket_cpus(facts, share.node);
    case NumaMode::kExclusive:
      return exclusive_cpus(facts, share);
    case NumaMode::kCoreComplex:
      return core_complex_cpus(facts, share);
  }
  return cannot("no such binding");
}

}  // namespace

std::optional<NumaMode> parse_numa_mode(std::string_view text) {
  if (text == "node") return NumaMode::kNode;
  if (text == "socket") return NumaMode::kSocket;
  if (text == "exclusive") return NumaMode::kExclusive;
  if (text == "core-complex") return NumaMode::kCoreComplex;
  return std::nullopt;
}

Result<std::vector<std::vector<int>>> plan_numa(NumaMode mode, const NumaFacts& facts,
                                                int worker_count) {
  const auto gpu_count = std::ssize(facts.gpu_nodes);
  if (worker_count > gpu_count) {
    return cannot(
        fmt::format("{} workers need as many visible GPUs; there are {}", worker_count, gpu_count));
  }
  std::vector<Cpus> plan;
  for (int worker = 0; worker < worker_count; ++worker) {
    auto cpus = cpus_of_worker(mode, facts, worker);
    if (!cpus) return cpus.error();
    plan.push_back(*std::move(cpus));
  }
  return plan;
}

std::optional<std::vector<int>> parse_cpu_ranges(std::string_view text) {
  std::vector<int> cpus;
  while (text.ends_with('\n')) text.remove_suffix(1);
  while (!text.empty()) {
    const auto comma = std::min(text.find(','), text.size());
    const auto range = text.substr(0, comma);
    const auto dash = std::min(range.find('-'), range.size());
    const auto first = parse_int(range.substr(0, dash));
    const auto last = dash == range.size() ? first : parse_int(range.substr(dash + 1));
    if (!first || !last || *first < 0 || *last < *first || *last >= kMaxCpus) return std::nullopt;
    for (int cpu = *first; cpu <= *last; ++cpu) cpus.push_back(cpu);
    text.remove_prefix(std::min(comma + 1, text.size()));
  }
  return cpus;
}

}  // namespace ddprun::launcher
