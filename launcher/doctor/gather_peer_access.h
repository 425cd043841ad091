// A part of gather.h: whether GPUs may read each other's memory, and what lies on the way. Files of
// the kernel and nvidia-smi's table, without a library. Any thread.
#pragma once

#include <filesystem>
#include <string_view>

#include "launcher/doctor/node_facts.h"

namespace ddprun::launcher {

// Sets `gpus_asked` and `refused` from what `nvidia-smi topo -p2p r` prints. Leaves both as they
// are if the text has no table.
void read_peer_table(std::string_view text, PeerAccessFacts& facts);

// IOMMU and ACS, between NVIDIA's GPUs that this process sees. A bridge's ACS lies in the extended
// part of its configuration, which root alone may read. All paths are below `root`, which is "/"
// except in tests.
PeerAccessFacts gather_peer_paths(const std::filesystem::path& root);

}  // namespace ddprun::launcher
