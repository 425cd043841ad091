#include "launcher/job/numa_sysfs.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <fstream>
#include <map>
#include <sstream>
#include <system_error>

#include "launcher/options/flag_values.h"

namespace ddprun::launcher {
namespace {

namespace fs = std::filesystem;

Error unreadable(const fs::path& path) {
  return {ErrorCode::kNotFound, fmt::format("{}: cannot be read", path.string())};
}

// A file without the blanks at its end. Empty if it cannot be read; the callers' parsers refuse
// that.
std::string read_text(const fs::path& path) {
  const std::ifstream file(path);
  std::ostringstream all;
  all << file.rdbuf();  // an iterator over the buffer would throw where reading fails
  std::string text = all.str();
  while (!text.empty() && std::isspace(static_cast<unsigned char>(text.back())) != 0)
    text.pop_back();
  return text;
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

// Sorted: the kernel lists a folder in no order, and PCI addresses must be in theirs. None if there
// is no such folder.
std::vector<std::string> names_in(const fs::path& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    names.push_back(entry->path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
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

struct Gpu {
  std::string pci_address;
  std::string uuid;
  int node = 0;
};

// The value behind `name:` in the driver's file `information`. Empty if it is not there.
std::string information(const std::string& text, std::string_view name) {
  const auto at = text.find(fmt::format("{}:", name));
  if (at == std::string::npos) return {};
  const auto from = text.find_first_not_of(": \t", at + name.size());
  if (from == std::string::npos) return {};
  return text.substr(from, text.find_first_of(" \t\n", from) - from);
}

// Returns whether our container hides this GPU. /proc shows all GPUs of the machine, but a
// container has device files only for its own. If there are no device files at all, nothing is
// known and nothing is hidden.
bool is_hidden(const fs::path& root, const std::string& minor) {
  const auto names = names_in(root / "dev");
  const bool any = std::any_of(names.begin(), names.end(), [](const std::string& name) {
    return name.starts_with("nvidia") && parse_int(name.substr(6));
  });
  return any && !minor.empty() && !fs::exists(root / "dev" / ("nvidia" + minor));
}

Result<std::vector<Gpu>> read_gpus(const fs::path& root) {
  const fs::path folder = root / "proc/driver/nvidia/gpus";
  std::vector<Gpu> gpus;
  for (const std::string& address : names_in(folder)) {
    const std::string text = read_text(folder / address / "information");
    if (is_hidden(root, information(text, "Device Minor"))) continue;
    const auto node = read_int(root / "sys/bus/pci/devices" / address / "numa_node");
    if (!node) return node.error();
    // A machine with one NUMA node says -1.
    gpus.push_back({address, information(text, "GPU UUID"), std::max(*node, 0)});
  }
  if (gpus.empty()) {
    return Error(ErrorCode::kNotFound, "no NVIDIA driver, or no GPU of it, on this node");
  }
  return gpus;
}

// The GPU that one entry of CUDA_VISIBLE_DEVICES names, or nullptr. CUDA reads it so: an index, or
// the beginning of a UUID.
const Gpu* find_gpu(const std::vector<Gpu>& gpus, const std::string& entry) {
  if (const auto index = parse_int(entry)) {
    return *index >= 0 && *index < std::ssize(gpus) ? &gpus[static_cast<std::size_t>(*index)]
                                                    : nullptr;
  }
  for (const Gpu& gpu : gpus) {
    if (entry.starts_with("GPU-") && gpu.uuid.starts_with(entry)) return &gpu;
  }
  return nullptr;
}

// NUMA nodes of the GPUs that CUDA shows, in its order.
std::vector<int> visible_nodes(const std::vector<Gpu>& gpus,
                               const std::optional<std::string>& visible) {
  std::vector<int> nodes;
  if (!visible) {
    for (const Gpu& gpu : gpus) nodes.push_back(gpu.node);
    return nodes;
  }
  for (std::string entry : parse_texts(*visible)) {
    std::erase(entry, ' ');
    const Gpu* gpu = find_gpu(gpus, entry);
    // CUDA shows nothing from the first bad entry on.
    if (gpu == nullptr) break;
    nodes.push_back(gpu->node);
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
