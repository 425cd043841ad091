// --numa-binding: which CPUs each worker may run on, so that it stays near its GPU. The planner is
// pure; what it knows of the host comes in as NumaFacts (numa_sysfs.h reads them). Rules are those
// of torch/numa/binding.py of torch 2.11. It binds nothing: numactl does, in front of the worker's
// command.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "proto/result.h"

namespace ddprun::launcher {

// The kernel's own bound on x86-64 (NR_CPUS): a higher number is no CPU.
inline constexpr int kMaxCpus = 8192;

enum class NumaMode {
  kNode,         // all CPUs of the GPU's NUMA node
  kSocket,       // all CPUs of the processor that holds that node
  kExclusive,    // the node's cores shared out among its GPUs; first GPUs get one more
  kCoreComplex,  // one group of CPUs with a common last-level cache, the largest first
};

// One CPU that this process may run on. `core` and `cache` are the lowest CPU number that shares
// the physical core, or the last-level cache.
struct Cpu {
  int number = 0;
  int node = 0;  // NUMA node
  int package = 0;
  int core = 0;
  int cache = 0;
};

struct NumaFacts {
  std::vector<Cpu> cpus;       // ascending by number
  std::vector<int> gpu_nodes;  // NUMA node of each visible GPU, in CUDA's order
};

// `node`, `socket`, `exclusive` or `core-complex`.
std::optional<NumaMode> parse_numa_mode(std::string_view text);

// CPU numbers for each local rank, ascending, none empty. Worker k belongs to GPU k. Errors are one
// clause: a worker without a GPU, a node without a CPU for us, fewer cores than GPUs.
Result<std::vector<std::vector<int>>> plan_numa(NumaMode mode, const NumaFacts& facts,
                                                int worker_count);

// "0-3,8" as 0 1 2 3 8, as sysfs writes it; nothing for other text.
std::optional<std::vector<int>> parse_cpu_ranges(std::string_view text);

}  // namespace ddprun::launcher
