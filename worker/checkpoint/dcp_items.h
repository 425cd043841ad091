// The items of a run that this rank writes into a distributed checkpoint. The training thread.
#pragma once

#include <ddprun/checkpoint.h>

#include <filesystem>
#include <vector>

#include "worker/checkpoint/dcp_folder.h"

namespace ddprun::worker {

// All ranks must call it. The items' storages are the run's own: write or copy them before the next
// step. Throws CheckpointError on all ranks or none, which names the folder.
std::vector<DcpItem> dcp_items(const std::filesystem::path& folder, const CheckpointRun& run,
                               const CheckpointInfo& info);

}  // namespace ddprun::worker
