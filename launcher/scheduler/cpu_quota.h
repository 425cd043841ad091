// How many processors the cgroup of this process may use at once. It is the CPU controller's quota,
// version 1 or 2 (cgroups(7)). Reads files; any thread.
#pragma once

#include <filesystem>
#include <optional>

namespace ddprun::launcher {

// The smallest quota of our cgroup and of those above it, in whole processors, at least 1. Nothing
// if there is none. All paths are below `root`, which is "/" except in tests.
std::optional<int> cpu_quota(const std::filesystem::path& root);

}  // namespace ddprun::launcher
