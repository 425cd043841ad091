#include "launcher/job/numa_sysfs.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "launcher/job/device_files.h"
#include "launcher/job/nvidia_gpus.h"
#include "launcher/job/visible_devices.h"
#include "launcher/options/flag_values.h"

namespace ddprun::launcher {
namespace {

namespace fs = std::filesystem;

Error unreadable(const fs::path& path) {
  return {ErrorCode::kNotFound, fmt::format("{}: cannot be read", path.string())};
}

Result<int> read_int(const fs::path& path) {
  const auto value = parse_int(read_text(path));
  if (!value) return unreadable(path);
  return *value;
}

// The lowest CPU of a list such as thread_siblings_list. It stands for all CPUs of the list.
Result<int> read_lowest(const fs::path& path) {
  const auto cpus = parse_cpu_ranges(read_text(path));
  if (!cpus || cpus->empty()) return unreadable(path);
  return *std::min_element(cpus->begin(), cpus->end());
}

// The NUMA node of each CPU, from node*/cpulist. Empty on a kernel without NUMA.
std::map<int, int> nodes_of_cpus(const fs::path& folder) {
  std::map<int, int> nodes;
  for (const std::string& name : names_in(folder)) {
    const auto node = name.starts_with("node") ? parse_int(name.substr(4)) : std::nullopt;
    if (!node) continue;
    const auto cpus = parse_cpu_ranges(read_text(folder / name / "cpulist"));
    if (!cpus) continue;
    for (const int cpu : *cpus) nodes[cpu] = *node;
  }
  return nodes;
}

// The lowest CPU that shares the last level of cache with this one. A cache for instructions alone
// does not count.
Result<int> read_last_cache(const fs::path& folder) {
  int top_level = 0;
  std::string top;
  for (const std::string& name : names_in(folder)) {
    if (!name.starts_with("index")) continue;
    const std::string type = read_text(folder / name / "type");
    const auto level = parse_int(read_text(folder / name / "level"));
    if (!level || *level <= top_level || (type != "Unified" && type != "Data")) continue;
    top_level = *level;
    top = name;
  }
  if (top.empty()) return unreadable(folder);
  return read_lowest(folder / top / "shared_cpu_list");
}

Result<Cpu> read_cpu(const fs::path& folder, int number, int node) {
  const auto package = read_int(folder / "topology/physical_package_id");
  if (!package) return package.error();
  const auto core = read_lowest(folder / "topology/thread_siblings_list");
  if (!core) return core.error();
  // A virtual machine may hide its caches. With -1 for all, each NUMA node is one group.
  const auto cache = read_last_cache(folder / "cache");
  return Cpu{number, node, *package, *core, cache ? *cache : -1};
}

// GPUs with their NUMA nodes, in the order of PCI addresses.
struct PlacedGpus {
  std::vector<std::string> uuids{};
  std::vector<int> nodes{};
  bool are_alike = true;  // of one model
};

Result<PlacedGpus> read_gpus(const fs::path& root) {
  PlacedGpus placed;
  std::set<std::string> models;
  for (const NvidiaGpu& gpu : nvidia_gpus(root)) {
    if (gpu.pci_address.empty()) continue;
    const auto node = read_int(root / "sys/bus/pci/devices" / gpu.pci_address / "numa_node");
    if (!node) return node.error();
    placed.uuids.push_back(gpu.uuid);
    // A machine with one NUMA node says -1.
    placed.nodes.push_back(std::max(*node, 0));
    models.insert(gpu.model);
  }
  if (placed.nodes.empty())
    return Error(ErrorCode::kNotFound, "no NVIDIA driver, or no GPU of it, on this node");
  placed.are_alike = models.size() == 1;
  return placed;
}

// NUMA nodes of the GPUs that CUDA shows, in its order. A GPU that nobody can place ends them.
std::vector<int> visible_nodes(const PlacedGpus& gpus, const std::optional<std::string>& visible) {
  if (!visible) return gpus.nodes;
  std::vector<int> nodes;
  for (const int gpu : visible_to_cuda(gpus.uuids, *visible).gpus) {
    if (gpu == kSomeDevice) break;
    nodes.push_back(gpus.nodes[static_cast<std::size_t>(gpu)]);
  }
  return nodes;
}

}  // namespace

Result<NumaFacts> read_numa_facts(const fs::path& root, const std::vector<int>& allowed,
                                  const std::optional<std::string>& visible) {
  const auto gpus = read_gpus(root);
  if (!gpus) return gpus.error();
  NumaFacts facts;
  facts.gpu_nodes = visible_nodes(*gpus, visible);
  facts.gpus_are_alike = gpus->are_alike;
  const auto nodes = nodes_of_cpus(root / "sys/devices/system/node");
  for (const int number : allowed) {
    // Without NUMA all CPUs are on node 0, and so are the GPUs.
    const auto node = nodes.find(number);
    const auto cpu = read_cpu(root / "sys/devices/system/cpu" / fmt::format("cpu{}", number),
                              number, node == nodes.end() ? 0 : node->second);
    if (!cpu) return cpu.error();
    facts.cpus.push_back(*cpu);
  }
  return facts;
}

}  // namespace ddprun::launcher
