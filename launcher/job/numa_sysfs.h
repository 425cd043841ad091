// The facts of this machine that --numa-binding needs, from /sys and from the NVIDIA driver's
// /proc. A thin shell: it reads and decides nothing. The planner (numa.h) gets the facts as values,
// so its tests need no such machine. Main thread, at start, and only if the flag is given.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "launcher/options/numa.h"

namespace ddprun::launcher {

// The CPUs among `allowed`, and the GPUs that CUDA shows under `visible` (CUDA_VISIBLE_DEVICES).
// GPUs are in the order of their PCI addresses, as CUDA numbers GPUs of one model. All paths are
// below `root`, which is "/" except in tests. Errors are one clause: no NVIDIA driver, or a file
// that is missing or makes no sense.
Result<NumaFacts> read_numa_facts(const std::filesystem::path& root,
                                  const std::vector<int>& allowed,
                                  const std::optional<std::string>& visible);

}  // namespace ddprun::launcher
