// Counts the accelerators of this node by files, without a vendor's library. It looks at device
// files, and at the text in /sys and /proc that describes them. Variables hide some of them. Main
// thread, at start, and only if --nproc-per-node or the doctor asks.
#pragma once

#include <filesystem>

#include "base/environment.h"
#include "launcher/options/accelerators.h"

namespace ddprun::launcher {

// Kinds of which nothing is here are left out. All paths are below `root`, which is "/" except in
// tests. NVIDIA: CUDA_VISIBLE_DEVICES. AMD: ROCR_VISIBLE_DEVICES, then HIP_VISIBLE_DEVICES or else
// CUDA_VISIBLE_DEVICES. Intel: ZE_AFFINITY_MASK and ONEAPI_DEVICE_SELECTOR, and each tile is a
// device unless ZE_FLAT_DEVICE_HIERARCHY is COMPOSITE. Ascend: ASCEND_RT_VISIBLE_DEVICES. Gaudi:
// HABANA_VISIBLE_MODULES.
Accelerators count_accelerators(const std::filesystem::path& root, const EnvLookup& env);

}  // namespace ddprun::launcher
