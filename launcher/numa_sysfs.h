// What --numa-binding has to know of this host, from /sys and the NVIDIA driver's /proc. A thin
// shell: reads, decides nothing. Main thread, at start, and only when the flag is given.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "launcher/numa.h"

namespace ddprun::launcher {

// CPU numbers of this process's affinity mask, ascending.
std::vector<int> allowed_cpus();

// CPUs among `allowed`, and the GPUs that CUDA shows under `visible` (CUDA_VISIBLE_DEVICES) in the
// order of their PCI addresses, as CUDA has equal GPUs. Below `root`, which is "/" but in tests.
// Errors are one clause: no NVIDIA driver, or a file that is missing or makes no sense.
Result<NumaFacts> read_numa_facts(const std::filesystem::path& root,
                                  const std::vector<int>& allowed,
                                  const std::optional<std::string>& visible);

}  // namespace ddprun::launcher
