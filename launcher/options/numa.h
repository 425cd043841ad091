// --numa-binding: which CPUs each worker may run on, so that it stays near its GPU. The rules are
// those of torch/numa/binding.py of torch 2.11. The planner is pure: what it knows of the machine
// comes in as NumaFacts (numa_sysfs.h reads them). It binds nothing: numactl does, in front of the
// worker's command (command.h). Any thread.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace ddprun::launcher {

enum class NumaMode {
  kNode,         // all CPUs of the GPU's NUMA node
  kSocket,       // all CPUs of the processor that holds that node
  kExclusive,    // the node's cores shared out among its GPUs; its first GPUs get one more
  kCoreComplex,  // one group of CPUs with a common last-level cache, the largest first
};

// One CPU that this process may run on. `core` is the lowest CPU number of its physical core.
// `cache` is the lowest CPU number that shares its last-level cache. It is -1 if caches are hidden.
struct Cpu {
  int number = 0;
  int node = 0;     // NUMA node
  int package = 0;  // the processor (socket)
  int core = 0;
  int cache = 0;
};

struct NumaFacts {
  std::vector<Cpu> cpus;       // ascending by number
  std::vector<int> gpu_nodes;  // NUMA node of each visible GPU, in CUDA's order
  // All GPUs of the node are of one model. Else CUDA's own order begins with the fastest, and is
  // not that of the PCI addresses.
  bool gpus_are_alike = true;
};

// `node`, `socket`, `exclusive` or `core-complex`.
std::optional<NumaMode> parse_numa_mode(std::string_view text);

// CPU numbers for each local rank, ascending, no list empty. Worker k belongs to GPU k. Errors are
// one clause. They are a worker without a GPU, a NUMA node without a CPU for us, and fewer cores
// than GPUs.
Result<std::vector<std::vector<int>>> plan_numa(NumaMode mode, const NumaFacts& facts,
                                                int worker_count);

// "0-3,8", as sysfs writes it, as 0 1 2 3 8. Nothing if `text` is something else.
std::optional<std::vector<int>> parse_cpu_ranges(std::string_view text);

}  // namespace ddprun::launcher
